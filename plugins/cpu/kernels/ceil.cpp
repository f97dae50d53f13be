#include "functions.h"
#include "unary.h"

JF_UNARY(ceil, ceil(x))
