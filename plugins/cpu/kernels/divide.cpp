#include "binary.h"

JF_BINARY(divide, a / b)
