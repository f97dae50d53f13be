#include "convolutions.h"

JF_CONVOLUTION(conv_2d_depthwise, 2, true, bit(F32), bit(F32))
