// What a driver of the fake device can say to it, beside the CUDA calls that PyTorch makes.
#pragma once

#include <cstddef>

void fake_device(std::size_t bytes);        // its memory
void fake_stream_done(std::size_t stream);  // every event recorded on it so far has completed
std::size_t fake_base();                    // the lowest address that is given out
