#include "gated.h"

JF_GATED(geglu_erf, gelu_erf(g))
