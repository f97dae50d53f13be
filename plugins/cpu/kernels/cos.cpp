#include "functions.h"
#include "unary.h"

JF_UNARY(cos, sine(x, 1))
