#include "unary.h"

JF_UNARY(tanh, tanh(x))
