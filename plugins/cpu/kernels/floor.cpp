#include "functions.h"
#include "unary.h"

JF_UNARY(floor, floor(x))
