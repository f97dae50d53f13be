#include "unary.h"

JF_UNARY(gelu_erf, gelu_erf(x))
