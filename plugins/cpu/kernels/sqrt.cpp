#include "functions.h"
#include "unary.h"

JF_UNARY(sqrt, sqrt(x))
