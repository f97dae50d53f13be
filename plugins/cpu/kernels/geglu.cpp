#include "gated.h"

JF_GATED(geglu, gelu(g))
