#include "unary.h"

JF_UNARY(gelu_quick, gelu_quick(x))
