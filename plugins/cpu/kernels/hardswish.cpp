#include "unary.h"

JF_UNARY(hardswish, x* min(splat(1.0f), max(splat(0.0f), (x + 3.0f) / 6.0f)))
