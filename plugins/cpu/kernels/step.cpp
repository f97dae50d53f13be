#include "unary.h"

JF_UNARY(step, x > 0.0f ? splat(1.0f) : x == x ? splat(0.0f) : x)
