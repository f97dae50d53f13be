#include "functions.h"
#include "unary.h"

JF_UNARY(sin, sine(x, 0))
