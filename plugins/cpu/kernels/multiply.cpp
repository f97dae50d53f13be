#include "binary.h"

JF_BINARY(multiply, (a) * (b))
