#include "binary.h"

JF_BINARY(add, a + b)
