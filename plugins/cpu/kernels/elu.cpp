#include "functions.h"
#include "unary.h"

JF_UNARY(elu, x > 0.0f ? x : expm1(x))
