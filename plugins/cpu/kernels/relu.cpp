#include "unary.h"

// x stands second, so NaN survives.
JF_UNARY(relu, max(vf{}, x))
