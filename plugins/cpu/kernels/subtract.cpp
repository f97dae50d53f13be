#include "binary.h"

JF_BINARY(subtract, a - b)
