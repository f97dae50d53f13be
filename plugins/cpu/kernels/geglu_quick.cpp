#include "gated.h"

JF_GATED(geglu_quick, gelu_quick(g))
