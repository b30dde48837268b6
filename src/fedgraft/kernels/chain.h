// What crosses the border between Python and the kernels: plain C, so that neither Python's nor PyTorch's headers are
// needed to build it and one binary serves every version of both.
#pragma once
#include <cstdint>

// One convolution with what follows it. kernels/native.py mirrors these fields one by one.
struct Stage {
    int32_t channels, height, width;      // of the input, without padding
    int32_t outputs;                      // output channels
    int32_t kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x;
    int32_t pool;                         // 1: 2x2 max-pooling with stride 2 follows
    int32_t activation;                   // 0 none, 1 ReLU, 2 leaky ReLU
    int32_t activate_first;               // 1: activation before pooling (matters only where rounding makes ties)
    int32_t norm;                         // 1: batch normalisation right behind the convolution
    float slope;                          // of the leaky ReLU
    float epsilon, momentum;              // of the normalisation
};

// A 4-dimensional float tensor (batch, channels, height, width) or (outputs, channels, kernel_y, kernel_x).
struct Tensor4 {
    float* data;                          // null: not wanted
    int64_t strides[4];                   // in floats
};

struct Parameters {
    Tensor4 weight;
    float* bias;                          // contiguous; null: none
    // of the normalisation, all contiguous: its weight and bias, and the running mean and variance
    float *norm_weight, *norm_bias, *mean, *variance;
};

// The kernels for one instruction set. All buffers are aligned to 64 bytes and zero when first handed over.
struct Kernels {
    const char* isa;
    int64_t lanes;                        // images in a block: the batch is cut into blocks of one vector
    int64_t (*saved_bytes)(const Stage*, int64_t stages);    // per block, kept from forward to backward
    // Per call in progress; `blocks` counts only where a stage normalises, and is 1 elsewhere.
    int64_t (*scratch_bytes)(const Stage*, int64_t stages, int64_t blocks);
    int64_t (*by_patches)(const Stage*);  // 1: the backward pass of this stage visits the winners of its pool alone
    // keep = 0 reuses the space of one block for the whole batch (evaluation). learn = 1 normalises by the moments of the
    // batch and moves the running ones; it wants the space of all blocks.
    void (*forward)(const Stage*, int64_t stages, int64_t batch, const Tensor4* input, const Parameters*,
                    float* output, char* saved, char* scratch, int64_t keep, int64_t learn);
    // Gradients with a null pointer are not computed, nor is anything that only they would need. Where a stage
    // normalises, the forward pass was one that learned.
    void (*backward)(const Stage*, int64_t stages, int64_t batch, const float* output_gradient, const Parameters*,
                     const Parameters* gradients, float* input_gradient, char* saved, char* scratch);
    double (*peak)(int64_t rounds);       // multiply-adds as fast as they go; returns the floating-point operations
};

// The n-th kernels, best first, that this CPU can run; null behind the last. A change to anything above gives it another
// number, so that a library that was left from older sources is noticed.
extern "C" __attribute__((visibility("default"))) const Kernels* fedgraft_kernels_3(int64_t n);
