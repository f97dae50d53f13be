#include "unary.h"

JF_UNARY(square, (x) * (x))
