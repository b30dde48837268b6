// The backward pass of a stage that ends in a pool. One pixel of four has a gradient there, but another one in every
// image: with images in the lanes nothing can be left out. So the lanes hold a patch of one image here, the kernel_x x
// channels numbers under a row of the kernel, and only the pixels that won their pool are visited, and of those only
// the ones whose gradient the activation has left.
//
// chain.cpp includes this file within its namespace.

constexpr Int WORD = 32;   // bits of a mask
constexpr Int PATCH = 12;  // vectors of a patch at once: 16 registers hold them, a gradient and what is loaded

typedef uint32_t Word __attribute__((may_alias));  // one lane of a mask in memory

// What lies under a kernel in an image [y][x][channel] with its padding. The numbers under a row of the kernel are filled
// up to whole vectors, and rows x vectors are cut into pieces that fit the registers.
struct Patch {
    Int height, width, channels;  // of an image, with padding
    Split rows{0, 1}, vectors{0, 1};

    explicit Patch(const Shape& shape)
        : height(shape.s.height + 2 * shape.s.pad_y), width(shape.s.width + 2 * shape.s.pad_x),
          channels(shape.s.channels) {
        const Int across = (shape.s.kernel_x * channels + LANES - 1) / LANES;
        vectors = Split(across, (across + PATCH - 1) / PATCH);
        const Int together = least(6, PATCH / vectors.size(0));
        rows = Split(shape.s.kernel_y, (shape.s.kernel_y + together - 1) / together);
    }
    Int row() const { return width * channels; }
    Int image() const { return height * row() + LANES; }  // the last vector of a patch may overhang
    Int size() const { return rows.total * vectors.total; }
    Int at(Int y, Int x) const { return y * row() + x * channels; }
};

// Whether a stage goes this way: by its shapes alone, so that a run can be repeated. With images in the lanes all four
// pixels of a pool are multiplied; here a load goes with every product, and layouts have to be changed.
inline bool by_patches(const Shape& shape) {
    return shape.s.pool && 2 * Patch(shape).size() * LANES <= 4 * shape.taps;
}

// One call for a piece of a patch, with its size known to the compiler.
#define PIECE(R, N, CALL) case 8 * N + R: CALL(R, N); break;
#define FOR_PIECE(rows, vectors, CALL)                                                                           \
    switch (8 * (vectors) + (rows)) {                                                                            \
        PIECE(1, 1, CALL) PIECE(2, 1, CALL) PIECE(3, 1, CALL) PIECE(4, 1, CALL) PIECE(5, 1, CALL) PIECE(6, 1, CALL) \
        PIECE(1, 2, CALL) PIECE(2, 2, CALL) PIECE(3, 2, CALL) PIECE(4, 2, CALL) PIECE(5, 2, CALL) PIECE(6, 2, CALL) \
        PIECE(1, 3, CALL) PIECE(2, 3, CALL) PIECE(3, 3, CALL) PIECE(4, 3, CALL)                                  \
        PIECE(1, 4, CALL) PIECE(2, 4, CALL) PIECE(3, 4, CALL)                                                    \
        PIECE(1, 5, CALL) PIECE(2, 5, CALL) PIECE(1, 6, CALL) PIECE(2, 6, CALL)                                  \
        PIECE(1, 7, CALL) PIECE(1, 8, CALL) PIECE(1, 9, CALL)                                                    \
        PIECE(1, 10, CALL) PIECE(1, 11, CALL) PIECE(1, 12, CALL)                                                 \
    }

// What the pools of a block hold, and the space that a stage needs to go through them.
struct Pools {
    Patch patch;
    Int outputs, count, row, stride;  // pools of a channel, in a row; numbers from one channel to the next
    Int count_words, output_words;
    float* gradients;                 // [image][output][pool]
    int32_t* places;                  // [image][output][pool]: where in its image the winner's patch begins
    Mask* alive;                      // [output][word of pools], a lane for each image: whose gradient is not zero
    Mask* winners;                    // [pool][pixel of four][word of outputs], likewise: which of them won there
    V* lane_gradients;                // [pool] of one channel, a lane for each image
    Mask* lane_places;
    float* images;                    // the stage's input, or its gradient, image by image
    V *weights, *sums;                // [output][row of the patch][vector], and the sums of their gradients

    Pools(const Shape& shape, Stretches& space)
        : patch(shape), outputs(shape.s.outputs), count(shape.out_h * shape.out_w), row(shape.out_w),
          stride((count + LANES - 1) / LANES * LANES), count_words((count + WORD - 1) / WORD),
          output_words((outputs + WORD - 1) / WORD) {
        gradients = space.next<float>(LANES * outputs * stride);
        places = space.next<int32_t>(LANES * outputs * stride);
        alive = space.next<Mask>(outputs * count_words);
        winners = space.next<Mask>(count * 4 * output_words);
        lane_gradients = space.next<V>(stride);
        lane_places = space.next<Mask>(stride);
        images = space.next<float>(LANES * patch.image());
        weights = space.next<V>(outputs * patch.size());
        sums = space.next<V>(outputs * patch.size());
    }
};

inline bool finite(const V* from, Int count) {
    Mask not_finite = {};
    for (Int i = 0; i < count; i++) not_finite |= from[i] - from[i] != 0;  // zero, or NaN
    for (Int lane = 0; lane < LANES; lane++)
        if (not_finite[lane]) return false;
    return true;
}

void pack_patches(const Stage& s, const Tensor4& weight, const Pools& pools) {
    const Int across = pools.patch.vectors.total * LANES;
    Lane* to = reinterpret_cast<Lane*>(pools.weights);
    for (Int o = 0; o < s.outputs; o++)
        for (Int ky = 0; ky < s.kernel_y; ky++, to += across)
            for (Int kx = 0; kx < s.kernel_x; kx++)
                for (Int c = 0; c < s.channels; c++)
                    to[kx * s.channels + c] = weight.data[o * weight.strides[0] + c * weight.strides[1] +
                                                          ky * weight.strides[2] + kx * weight.strides[3]];
}

void add_patches(const Stage& s, const Pools& pools, const Tensor4& to) {
    const Int across = pools.patch.vectors.total * LANES;
    const Lane* from = reinterpret_cast<const Lane*>(pools.sums);
    for (Int o = 0; o < s.outputs; o++)
        for (Int ky = 0; ky < s.kernel_y; ky++, from += across)
            for (Int kx = 0; kx < s.kernel_x; kx++)
                for (Int c = 0; c < s.channels; c++)
                    to.data[o * to.strides[0] + c * to.strides[1] + ky * to.strides[2] + kx * to.strides[3]] +=
                        from[kx * s.channels + c];
}

// Gradients through the activation to the winners of the pools of a channel.
void visit_channel(const Shape& shape, const Saved& saved, const V* gradient, Int o, const Pools& pools, V* total) {
    const Int right = pools.patch.at(0, shape.s.stride_x), down = pools.patch.at(shape.s.stride_y, 0);
    const V* row = saved.output + saved.output_map.at(o, 0, 0);
    const Mask* winner = saved.winners + o * pools.count;
    Mask* alive = pools.alive + o * pools.count_words;
    Mask living = {}, bit = 1 - Mask{};
    V sum = {};
    Int pool = 0;
    for (Int y = 0; y < shape.out_h; y++, row += saved.output_map.row())
        for (Int x = 0; x < shape.out_w; x++, pool++) {
            const V g = back_through(gradient[pool], row[x], shape.s);
            sum += g;
            pools.lane_gradients[pool] = g;
            pools.lane_places[pool] = (winner[pool] & 1) * int32_t(right) + (winner[pool] >> 1) * int32_t(down) +
                                      int32_t(2 * (y * down + x * right));
            living |= (g != 0) & bit;
            bit <<= 1;
            if (pool % WORD == WORD - 1) *alive++ = living, living = Mask{}, bit = 1 - Mask{};
        }
    if (pool % WORD) *alive = living;
    *total += sum;
}

void visit_pools(const Shape& shape, const Saved& saved, const V* output_gradient, V* bias_sums, const Pools& pools) {
    for (Int o = 0; o < pools.outputs; o++) {
        visit_channel(shape, saved, output_gradient + o * pools.count, o, pools, bias_sums + o);
        for (Int start = 0; start < pools.count; start += LANES) {
            V gradients[LANES], places[LANES];
            for (Int i = 0; i < LANES; i++) gradients[i] = pools.lane_gradients[start + i];
            for (Int i = 0; i < LANES; i++) places[i] = reinterpret_cast<V>(pools.lane_places[start + i]);
            transpose(gradients);
            transpose(places);
            for (Int image = 0; image < LANES; image++) {
                const Int at = (image * pools.outputs + o) * pools.stride + start;
                *reinterpret_cast<Unaligned*>(pools.gradients + at) = gradients[image];
                *reinterpret_cast<Unaligned*>(pools.places + at) = places[image];
            }
        }
    }
}

// Which channels have a gradient at which of the four pixels of a pool.
void note_winners(const Saved& saved, const Pools& pools) {
    Mask* to = pools.winners;
    for (Int pool = 0; pool < pools.count; pool++, to += 4 * pools.output_words) {
        const Int word = pool / WORD;
        const Mask pool_bit = int32_t(1u << pool % WORD) - Mask{};
        for (Int outputs = 0; outputs < pools.output_words; outputs++) {
            Mask won[4] = {}, bit = 1 - Mask{};
            for (Int o = outputs * WORD; o < least(pools.outputs, (outputs + 1) * WORD); o++, bit <<= 1) {
                const Mask living = pools.alive[o * pools.count_words + word] & pool_bit;
                const Mask winner = living == 0 ? -1 - Mask{} : saved.winners[o * pools.count + pool];
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++) won[k] |= (winner == k) & bit;
            }
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) to[k * pools.output_words + outputs] = won[k];
        }
    }
}

// sums += gradient x patch over the living pools of a channel in one image.
template <int ROWS, int VECTORS>
void sum_piece(const float* image, Int row, const float* gradients, const int32_t* places, const Mask* alive, Int words,
               Int lane, V* sums, Int across) {
    V acc[ROWS][VECTORS] = {};
    for (Int word = 0; word < words; word++, gradients += WORD, places += WORD)
        for (Word left = reinterpret_cast<const Word*>(alive + word)[lane]; left; left &= left - 1) {
            const int pool = __builtin_ctz(left);
            const V g = gradients[pool] - V{};
            const float* patch = image + places[pool];
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++, patch += row)
#pragma GCC unroll 16
                for (int v = 0; v < VECTORS; v++)
                    acc[r][v] += g * *reinterpret_cast<const Unaligned*>(patch + v * LANES);
        }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++, sums += across)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) sums[v] += acc[r][v];
}

// The images take turns, so that a patch is not read again while it is still being written.
template <int ROWS, int VECTORS>
void spread_piece(const Shape& shape, const Pools& pools, Int images, Int first_row, Int first_vector) {
    const Patch& patch = pools.patch;
    const Int across = patch.vectors.total, row = patch.row();
    const V* const weights = pools.weights + first_row * across + first_vector;
    float* const corner = pools.images + first_row * row + first_vector * LANES;
    const Mask* winners = pools.winners;
    for (Int pool = 0; pool < pools.count; pool++)
        for (int k = 0; k < 4; k++, winners += pools.output_words) {
            const Int y = 2 * (pool / pools.row) + k / 2, x = 2 * (pool % pools.row) + k % 2;
            float* to = corner + patch.at(y * shape.s.stride_y, x * shape.s.stride_x);
            const float* gradients = pools.gradients + pool;
            for (Int image = 0; image < images; image++, to += patch.image(), gradients += pools.outputs * pools.stride) {
                V acc[ROWS][VECTORS];
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
                    for (int v = 0; v < VECTORS; v++)
                        acc[r][v] = *reinterpret_cast<const Unaligned*>(to + r * row + v * LANES);
                for (Int word = 0; word < pools.output_words; word++)
                    for (Word left = reinterpret_cast<const Word*>(winners + word)[image]; left; left &= left - 1) {
                        const Int o = word * WORD + __builtin_ctz(left);
                        const V g = gradients[o * pools.stride] - V{};
                        const V* w = weights + o * patch.size();
#pragma GCC unroll 8
                        for (int r = 0; r < ROWS; r++, w += across)
#pragma GCC unroll 16
                            for (int v = 0; v < VECTORS; v++) acc[r][v] += g * w[v];
                    }
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
                    for (int v = 0; v < VECTORS; v++) *reinterpret_cast<Unaligned*>(to + r * row + v * LANES) = acc[r][v];
            }
        }
}

void sum_patches(const Pools& pools, Int images) {
    const Patch& patch = pools.patch;
    for (Int image = 0; image < images; image++)
        for (Int o = 0; o < pools.outputs; o++) {
            const Int first = (image * pools.outputs + o) * pools.stride;
            for (Int i = 0; i < patch.rows.count; i++)
                for (Int j = 0; j < patch.vectors.count; j++) {
                    const Int y = patch.rows.start(i), v = patch.vectors.start(j);
#define CALL(R, N)                                                                                                     \
    sum_piece<R, N>(pools.images + image * patch.image() + y * patch.row() + v * LANES, patch.row(),                  \
                    pools.gradients + first, pools.places + first, pools.alive + o * pools.count_words,               \
                    pools.count_words, image, pools.sums + o * patch.size() + y * patch.vectors.total + v,            \
                    patch.vectors.total)
                    FOR_PIECE(patch.rows.size(i), patch.vectors.size(j), CALL)
#undef CALL
                }
        }
}

void spread_patches(const Shape& shape, const Pools& pools, Int images) {
    const Patch& patch = pools.patch;
    for (Int i = 0; i < images * patch.image(); i++) pools.images[i] = 0;
    for (Int i = 0; i < patch.rows.count; i++)
        for (Int j = 0; j < patch.vectors.count; j++) {
#define CALL(R, N) spread_piece<R, N>(shape, pools, images, patch.rows.start(i), patch.vectors.start(j))
            FOR_PIECE(patch.rows.size(i), patch.vectors.size(j), CALL)
#undef CALL
        }
}

// The whole backward pass of a stage for a block of images. Where anything is not finite it does nothing and says so:
// nothing times infinity has to become NaN, as in PyTorch.
bool backward_by_patches(const Shape& shape, const Saved& saved, const Pools& pools, const V* output_gradient,
                         V* bias_sums, V* input_gradient, Int images, bool weights) {
    const Stage& s = shape.s;
    const Patch& patch = pools.patch;
    const Map in = shape.input();
    if (!finite(output_gradient, shape.outputs()) || (weights && !finite(saved.input, in.vectors())) ||
        (input_gradient && !finite(pools.weights, pools.outputs * patch.size())))
        return false;
    visit_pools(shape, saved, output_gradient, bias_sums, pools);
    if (weights) {
        const Map padded = {in.groups, patch.height, patch.width, in.border_y - s.pad_y, in.border_x - s.pad_x};
        out_of_lanes(Walk(padded, saved.input + padded.at(0, 0, 0), false), patch.height * patch.row(), images,
                     pools.images, patch.image());
        sum_patches(pools, images);
    }
    if (input_gradient) {
        note_winners(saved, pools);
        spread_patches(shape, pools, images);
        const Map below = {in.groups, s.height, s.width, 0, 0};
        const bool whole = s.pad_y == 0 && s.pad_x == 0;  // then the rows of an image follow each other
        for (Int y = 0; y < (whole ? 1 : s.height); y++)
            into_lanes(pools.images + patch.at(y + s.pad_y, s.pad_x), patch.image(), images,
                       (whole ? s.height : 1) * s.width * s.channels,
                       Walk(below, input_gradient + below.at(0, y, 0), false));
    }
    return true;
}
