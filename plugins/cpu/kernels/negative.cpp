#include "unary.h"

JF_UNARY(negative, of_bits(bits_of(x) ^ int32_t(0x80000000)))
