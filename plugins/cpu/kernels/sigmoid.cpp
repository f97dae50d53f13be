#include "unary.h"

JF_UNARY(sigmoid, sigmoid(x))
