#include "unary.h"

JF_UNARY(gelu, gelu(x))
