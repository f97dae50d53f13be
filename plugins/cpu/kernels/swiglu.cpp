#include "gated.h"

JF_GATED(swiglu, silu(g))
