// Forward and backward of convolution -> (normalisation) -> (2x2 max-pooling) -> (activation) stages, batch innermost.
//
// The field's networks have 3 to 64 channels, so vectors over channels run half empty. Here a vector holds ONE value
// of LANES images, and every lane is full whatever the channels. The batch is cut into blocks of LANES images, and a
// block goes through all stages before the next one starts, so that its maps stay in the second-level cache. Only where
// a stage normalises by the moments of the batch do all blocks go through it together.
//
// This file is compiled once per instruction set (see build.py). Everything lies in an anonymous namespace and nothing
// comes from the C++ library: were a shared inline function compiled for AVX-512 merged with its baseline twin by the
// linker, the baseline kernels would run instructions the CPU lacks.
#include "chain.h"

#if defined(LANES)  // a test wants to see other vectors than the CPU's
#define TILE 3
#elif defined(__AVX512F__)
#define LANES 16
#define TILE 6  // 2x2 pixels x 6 channels = 24 of 32 registers are accumulators
#elif defined(__AVX__)
#define LANES 8
#define TILE 3  // 12 of 16 registers
#elif defined(__aarch64__)
#define LANES 4
#define TILE 6
#else
#define LANES 4
#define TILE 3
#endif

namespace {

typedef float V __attribute__((vector_size(4 * LANES)));
typedef float Unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));
typedef float Lane __attribute__((may_alias));  // one lane of a vector in memory
typedef int64_t Int;

constexpr Int TAPS = 4;              // kernel taps at once in the weight gradient: TILE x 4 accumulators
constexpr Int L1_SHARE = 24 * 1024;  // how much of the first-level cache a stretch of output gradient may take

inline Int least(Int a, Int b) { return a < b ? a : b; }
inline Int most(Int a, Int b) { return a > b ? a : b; }

// Channels cut into tiles of nearly equal size: 16 with tiles of at most 6 gives 6, 5, 5.
struct Split {
    Int total, count, each, longer;  // the first `longer` tiles have one channel more
    Split(Int channels, Int pieces)
        : total(channels), count(pieces), each(channels / pieces), longer(channels % pieces) {}
    Int size(Int i) const { return each + (i < longer); }
    Int start(Int i) const { return i * each + least(i, longer); }
};
inline Split tiles(Int channels) { return Split(channels, (channels + TILE - 1) / TILE); }
inline Split planes(Int channels) { return Split(channels, channels); }

// One call for a tile of `size` channels, with the size known to the compiler.
#if TILE == 6
#define FOR_TILE(size, CALL) \
    switch (size) {          \
        case 1: CALL(1); break; case 2: CALL(2); break; case 3: CALL(3); break; \
        case 4: CALL(4); break; case 5: CALL(5); break; case 6: CALL(6); break; \
    }
#else
#define FOR_TILE(size, CALL) \
    switch (size) {          \
        case 1: CALL(1); break; case 2: CALL(2); break; case 3: CALL(3); break; \
    }
#endif

// A map of `groups` channels over height x width pixels inside a border of zeros, in vectors, ordered
// [group][y][x][channel of the group]. Stage inputs have groups of one channel; output gradients have tiles, because
// the weight gradient walks over the pixels of a tile.
struct Map {
    Split groups;
    Int height, width, border_y, border_x;
    Int row() const { return width + 2 * border_x; }
    Int area() const { return row() * (height + 2 * border_y); }
    Int vectors() const { return area() * groups.total; }
    Int at(Int group, Int y, Int x) const {
        return groups.start(group) * area() + ((y + border_y) * row() + x + border_x) * groups.size(group);
    }
};

struct Shape {
    Stage s;
    Int conv_h, conv_w;  // what the convolution gives; with pooling, an odd last row or column is never looked at
    Int out_h, out_w;
    Int taps;

    explicit Shape(const Stage& stage) : s(stage) {
        conv_h = (s.height + 2 * s.pad_y - s.kernel_y) / s.stride_y + 1;
        conv_w = (s.width + 2 * s.pad_x - s.kernel_x) / s.stride_x + 1;
        out_h = s.pool ? conv_h / 2 : conv_h;
        out_w = s.pool ? conv_w / 2 : conv_w;
        if (s.pool) conv_h = 2 * out_h, conv_w = 2 * out_w;
        taps = Int(s.channels) * s.kernel_y * s.kernel_x;
    }
    // The border serves the padding and the one step that a 2x2 tile may overhang the image.
    Map input() const {
        return {planes(s.channels), s.height, s.width, most(s.pad_y, s.stride_y), most(s.pad_x, s.stride_x)};
    }
    // The gradient of the convolution's output, with stride - 1 zeros between its pixels, so that the input gradient
    // is a convolution of stride 1 whatever the stride was.
    Map gradient() const {
        return {tiles(s.outputs), (conv_h - 1) * s.stride_y + 1, (conv_w - 1) * s.stride_x + 1, 1, 1};
    }
    Map output() const { return {planes(s.outputs), out_h, out_w, 0, 0}; }
    Int outputs() const { return s.outputs * out_h * out_w; }
    Int chunks() const { return (taps + TAPS - 1) / TAPS; }
};

// The convolution of a stage: all of it, unless a normalisation stands between it and the rest.
inline Shape convolution(Stage s) {
    if (s.norm) s.norm = s.pool = s.activation = 0;
    return Shape(s);
}

// Hands out stretches of a buffer; without a buffer it only counts.
struct Stretches {
    char* base;
    Int used = 0;
    template <typename T>
    T* next(Int count) {
        T* here = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += (count * Int(sizeof(T)) + 63) / 64 * 64;
        return here;
    }
};

// What a block keeps for the backward pass: every stage's input, the place of each maximum, and the last output; of a
// stage that normalises also what its convolution gave.
struct Saved {
    V* input = nullptr;
    V* convolved = nullptr;
    double* moments = nullptr;  // the mean of each channel, then its inverse deviation; in the first block alone
    Mask* winners = nullptr;    // which of a pool's four pixels was the largest
    V* output;                  // the next stage's input, or the last output
    Map output_map;
    Int bytes;

    Saved(const Stage* stages, Int count, Int index, char* block)
        : output_map(index + 1 < count ? Shape(stages[index + 1]).input() : Shape(stages[index]).output()) {
        Stretches space{block};
        for (Int i = 0; i <= index; i++) {
            const Shape shape(stages[i]);
            input = space.next<V>(shape.input().vectors());
            convolved = space.next<V>(shape.s.norm ? convolution(shape.s).outputs() : 0);
            moments = space.next<double>(shape.s.norm ? 2 * shape.s.outputs : 0);
            winners = space.next<Mask>(shape.s.pool ? shape.outputs() : 0);
        }
        output = space.next<V>(output_map.vectors());
        bytes = space.used;
    }
    // What the convolution of a stage reads and writes.
    Saved around(const Shape& convolution, const Stage& stage) const {
        Saved here = *this;
        if (stage.norm) here.output = convolved, here.output_map = convolution.output();
        return here;
    }
};

// ---- layout ---------------------------------------------------------------------------------------------------------

// The lower (upper) halves of two vectors, lane by lane in turn.
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
#if LANES == 16
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#endif
inline V zip_low(V a, V b) { return __builtin_shufflevector(a, b, LOW); }
inline V zip_high(V a, V b) { return __builtin_shufflevector(a, b, HIGH); }
#else
inline V zipped(V a, V b, int from) {
    V v;
    for (int i = 0; i < LANES / 2; i++) v[2 * i] = a[from + i], v[2 * i + 1] = b[from + i];
    return v;
}
inline V zip_low(V a, V b) { return zipped(a, b, 0); }
inline V zip_high(V a, V b) { return zipped(a, b, LANES / 2); }
#endif

// LANES vectors as a square matrix: log2(LANES) rounds of perfect shuffles transpose it.
inline __attribute__((always_inline)) void transpose(V (&m)[LANES]) {
#pragma GCC unroll 4
    for (int round = 0; round < (LANES == 16 ? 4 : LANES == 8 ? 3 : 2); round++) {
        V next[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = zip_low(m[i], m[i + LANES / 2]);
            next[2 * i + 1] = zip_high(m[i], m[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) m[i] = next[i];
    }
}

// One vector instead of two: half as many partial sums of each, in turn.
inline V folded(V a, V b) { return zip_low(a, b) + zip_high(a, b); }

inline V load_some(const float* from, Int count) {
    if (count >= LANES) return *reinterpret_cast<const Unaligned*>(from);
    V v = {};
    for (Int i = 0; i < count; i++) v[i] = from[i];
    return v;
}

inline void store_some(float* to, V v, Int count) {
    if (count >= LANES) *reinterpret_cast<Unaligned*>(to) = v;
    else for (Int i = 0; i < count; i++) to[i] = v[i];
}

// Walks over a map of single channels in the order in which an image lies in memory: columns innermost, or channels.
struct Walk {
    V *outer, *middle, *inner;
    Int count[2], step[3];  // steps of the two inner counters; how far apart in the map
    Int i0 = 0, i1 = 0;

    Walk(const Map& map, V* from, bool columns_innermost)
        : outer(from), middle(from), inner(from),
          count{columns_innermost ? map.width : map.groups.total, columns_innermost ? map.height : map.width},
          step{columns_innermost ? 1 : map.area(), columns_innermost ? map.row() : 1,
               columns_innermost ? map.area() : map.row()} {}
    V& next() {
        V& here = *inner;
        inner += step[0];
        if (++i0 < count[0]) return here;
        i0 = 0;
        inner = middle += step[1];
        if (++i1 < count[1]) return here;
        i1 = 0;
        inner = middle = outer += step[2];
        return here;
    }
};

// `total` numbers of each of `images` (at most LANES) images into the lanes; those of absent images become zero.
void into_lanes(const float* from, Int apart, Int images, Int total, Walk to) {
    for (Int start = 0; start < total; start += LANES) {
        const Int here = least(LANES, total - start);
        V square[LANES];
        if (images == LANES && here == LANES)
            for (Int image = 0; image < LANES; image++)
                square[image] = *reinterpret_cast<const Unaligned*>(from + image * apart + start);
        else
            for (Int image = 0; image < LANES; image++)
                square[image] = image < images ? load_some(from + image * apart + start, here) : V{};
        transpose(square);
        for (Int i = 0; i < here; i++) to.next() = square[i];
    }
}

void out_of_lanes(Walk from, Int total, Int images, float* to, Int apart) {
    for (Int start = 0; start < total; start += LANES) {
        const Int here = least(LANES, total - start);
        V square[LANES];
        for (Int i = 0; i < LANES; i++) square[i] = i < here ? from.next() : V{};
        transpose(square);
        for (Int image = 0; image < images; image++) store_some(to + image * apart + start, square[image], here);
    }
}

// `images` images into a map of single channels. They are (channels, height, width) in the order that the strides say:
// either one value of all images lies together, or each image lies together with its columns or its channels
// innermost. native.py sees to it.
void take_in(const Tensor4& from, Int first, Int images, const Map& map, V* to) {
    const Int channels = map.groups.total;
    const float* base = from.data + first * from.strides[0];
    if (from.strides[0] != 1) {
        const Walk walk(map, to + map.at(0, 0, 0), channels == 1 || from.strides[1] != 1);
        into_lanes(base, from.strides[0], images, channels * map.height * map.width, walk);
        return;
    }
    for (Int c = 0; c < channels; c++)
        for (Int y = 0; y < map.height; y++)
            for (Int x = 0; x < map.width; x++)
                to[map.at(c, y, x)] = load_some(
                    base + c * from.strides[1] + y * from.strides[2] + x * from.strides[3], images);
}

// A map of single channels out to contiguous images.
void give_out(const Map& map, V* from, Int images, float* to) {
    const Int total = map.groups.total * map.height * map.width;
    out_of_lanes(Walk(map, from + map.at(0, 0, 0), true), total, images, to, total);
}

// ---- activations ----------------------------------------------------------------------------------------------------

// Comparisons are written so that NaN stays NaN: a diverging client must be noticed.
inline V activated(V v, const Stage& s) {
    if (s.activation == 1) return v <= 0 ? V{} : v;
    if (s.activation == 2) return v > 0 ? v : v * s.slope;
    return v;
}

// The gradient of an activation's input, from that of its output.
inline V back_through(V gradient, V output, const Stage& s) {
    if (s.activation == 1) return output <= 0 ? V{} : gradient;
    if (s.activation == 2) return output > 0 ? gradient : gradient * s.slope;
    return gradient;
}

// Four pixels become one. The first maximum wins, and a NaN beats everything: as in PyTorch.
inline __attribute__((always_inline)) V pooled(const V (&v)[4], Mask& winner) {
    V best = v[0];
    winner = Mask{};
    for (int i = 1; i < 4; i++) {
        const Mask better = (v[i] > best) | (v[i] != v[i]);
        best = better ? v[i] : best;
        winner = better ? i - Mask{} : winner;
    }
    return best;
}

// ---- pools, scratch space and packed weights ------------------------------------------------------------------------

#include "pooled.h"

// Space of one call: weights packed for the forward and for the backward pass, gradients of the maps, accumulators.
// Each stage has its own, so that borders stay zero from call to call. Behind that lie the gradients of the first input
// and of every stage's output, for each block that goes through a stage together with others.
struct Scratch {
    float *packed, *flipped;
    V *input_gradient, *gradient, *convolved_gradient, *output_gradient, *weight_sums, *bias_sums;
    double* sums;         // of a normalisation: two for each channel
    Stretches for_pools;  // where the space for going by patches begins
    Int bytes, bytes_of_a_block;

    Pools pools(const Shape& shape) const {
        Stretches space = for_pools;
        return Pools(shape, space);
    }

    Scratch(const Stage* stages, Int count, Int index, char* base, Int block = 0) : for_pools{base} {
        Stretches space{base}, one{nullptr};
        for (Int i = 0; i <= index; i++) lay_out(stages[i], space);
        Scratch later = *this;
        for (Int i = index + 1; i < count; i++) later.lay_out(stages[i], space);
        bytes = space.used;
        const Int inputs = Int(stages[0].channels) * stages[0].height * stages[0].width;
        one.next<V>(inputs);
        for (Int i = 0; i < count; i++) one.next<V>(Shape(stages[i]).outputs());
        bytes_of_a_block = one.used;
        space.used += block * bytes_of_a_block;
        output_gradient = space.next<V>(inputs);
        for (Int i = 0; i <= index; i++) {
            input_gradient = output_gradient;
            output_gradient = space.next<V>(Shape(stages[i]).outputs());
        }
    }

   private:
    void lay_out(const Stage& stage, Stretches& space) {
        const Shape shape = convolution(stage);
        packed = space.next<float>(shape.taps * stage.outputs);
        flipped = space.next<float>(shape.taps * stage.outputs);
        gradient = space.next<V>(shape.gradient().vectors());
        convolved_gradient = space.next<V>(stage.norm ? shape.outputs() : 0);
        weight_sums = space.next<V>(shape.chunks() * stage.outputs);
        bias_sums = space.next<V>(stage.outputs);
        sums = space.next<double>(stage.norm ? 2 * stage.outputs : 0);
        for_pools = space;
        if (by_patches(shape)) Pools(shape, space);
    }
};

// Weights in the order in which `correlate` reads them: [tile of outputs][group of inputs][ky][kx][input][output].
// Backward, inputs and outputs change places and the kernel is turned by 180 degrees.
struct Packing {
    Split in;
    Int kernel_y, kernel_x;
    Int step_out, step_in, step_y, step_x;
};

template <int O>
float* pack_tile(const Packing& p, const float* from, float* to) {
    for (Int group = 0; group < p.in.count; group++)
        for (Int ky = 0; ky < p.kernel_y; ky++)
            for (Int kx = 0; kx < p.kernel_x; kx++) {
                const float* w = from + p.in.start(group) * p.step_in + ky * p.step_y + kx * p.step_x;
                for (Int i = 0; i < p.in.size(group); i++, w += p.step_in, to += O)
#pragma GCC unroll 8
                    for (int o = 0; o < O; o++) to[o] = w[o * p.step_out];
            }
    return to;
}

void pack(const Stage& s, const Tensor4& weight, bool backward, float* to) {
    const Int* step = weight.strides;
    const Split out = tiles(backward ? s.channels : s.outputs);
    const Packing p =
        backward ? Packing{tiles(s.outputs), s.kernel_y, s.kernel_x, step[1], step[0], -step[2], -step[3]}
                 : Packing{planes(s.channels), s.kernel_y, s.kernel_x, step[0], step[1], step[2], step[3]};
    const float* from = weight.data;
    if (backward) from += (s.kernel_y - 1) * step[2] + (s.kernel_x - 1) * step[3];
    for (Int tile = 0; tile < out.count; tile++) {
        const float* first = from + out.start(tile) * p.step_out;
#define CALL(O) to = pack_tile<O>(p, first, to)
        FOR_TILE(out.size(tile), CALL)
#undef CALL
    }
}

// ---- convolution ----------------------------------------------------------------------------------------------------

struct Correlation {
    Map map;
    Int kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x;
};

// Adds to the accumulators of 2x2 output pixels x O output channels. A weight is broadcast once for four pixels, a
// pixel loaded once for O channels, and only taps that meet the image for at least one of the pixels are visited.
template <int O>
inline __attribute__((always_inline)) void correlate(
    const Correlation& c, const V* in, const float* weights, Int y, Int x, V (&sums)[O][4]) {
    const Map& m = c.map;
    const Int top = y * c.stride_y - c.pad_y, left = x * c.stride_x - c.pad_x;
    const Int ky0 = most(0, -top - c.stride_y), ky1 = least(c.kernel_y, m.height - top);
    const Int kx0 = most(0, -left - c.stride_x), kx1 = least(c.kernel_x, m.width - left);
    if (kx0 >= kx1) return;
    for (Int group = 0; group < m.groups.count; group++) {
        const Int size = m.groups.size(group), count = (kx1 - kx0) * size;
        const Int right = c.stride_x * size, down = c.stride_y * m.row() * size;
        const V* row = in + m.at(group, top + ky0, left + kx0);
        const float* w = weights + (ky0 * c.kernel_x + kx0) * size * O;
        for (Int ky = ky0; ky < ky1; ky++, row += m.row() * size, w += c.kernel_x * size * O) {
            const V* p = row;
            const float* q = w;
            for (Int t = 0; t < count; t++, p++, q += O) {
                const V p0 = p[0], p1 = p[right], p2 = p[down], p3 = p[down + right];
#pragma GCC unroll 8
                for (int o = 0; o < O; o++) {
                    const V broadcast = q[o] - V{};
                    sums[o][0] += p0 * broadcast;
                    sums[o][1] += p1 * broadcast;
                    sums[o][2] += p2 * broadcast;
                    sums[o][3] += p3 * broadcast;
                }
            }
        }
        weights += c.kernel_y * c.kernel_x * size * O;
    }
}

template <int O, bool POOL>
void forward_tile(const Shape& shape, const Correlation& c, const Saved& saved, const float* weights,
                  const float* bias, Int first) {
    const Stage& s = shape.s;
    const bool activate_first = s.activate_first || !POOL;
    for (Int y = 0; y < shape.conv_h; y += 2)
        for (Int x = 0; x < shape.conv_w; x += 2) {
            V sums[O][4];
#pragma GCC unroll 8
            for (int o = 0; o < O; o++)
                sums[o][0] = sums[o][1] = sums[o][2] = sums[o][3] = (bias ? bias[first + o] : 0.0f) - V{};
            correlate<O>(c, saved.input, weights, y, x, sums);
#pragma GCC unroll 8
            for (int o = 0; o < O; o++) {
                V v[4] = {sums[o][0], sums[o][1], sums[o][2], sums[o][3]};
                if (activate_first)
                    for (int i = 0; i < 4; i++) v[i] = activated(v[i], s);
                if (POOL) {
                    Mask winner;
                    V best = pooled(v, winner);
                    if (!activate_first) best = activated(best, s);
                    saved.output[saved.output_map.at(first + o, y / 2, x / 2)] = best;
                    saved.winners[((first + o) * shape.out_h + y / 2) * shape.out_w + x / 2] = winner;
                } else {
                    V* to = saved.output + saved.output_map.at(first + o, y, x);
                    const Int down = saved.output_map.row();
                    const bool two = x + 1 < shape.conv_w;
                    to[0] = v[0];
                    if (two) to[1] = v[1];
                    if (y + 1 < shape.conv_h) {
                        to[down] = v[2];
                        if (two) to[down + 1] = v[3];
                    }
                }
            }
        }
}

// The gradient with respect to a stage's input is the correlation of its output gradient with the turned kernel.
template <int O>
void input_gradient_tile(const Correlation& c, const V* gradient, const float* weights, const Map& map, V* to,
                         Int first) {
    for (Int y = 0; y < map.height; y += 2)
        for (Int x = 0; x < map.width; x += 2) {
            V sums[O][4] = {};
            correlate<O>(c, gradient, weights, y, x, sums);
            const bool two = x + 1 < map.width;
#pragma GCC unroll 8
            for (int o = 0; o < O; o++) {
                V* pixel = to + map.at(first + o, y, x);
                pixel[0] = sums[o][0];
                if (two) pixel[1] = sums[o][1];
                if (y + 1 < map.height) {
                    pixel[map.row()] = sums[o][2];
                    if (two) pixel[map.row() + 1] = sums[o][3];
                }
            }
        }
}

// ---- backward -------------------------------------------------------------------------------------------------------

// From the gradient of a stage's output to that of its convolution, for some rows of a tile: through the activation,
// and to the pixel that won the pooling. The pixels that lost are written too, because the lanes disagree who won.
void through_activation_and_pool(const Shape& shape, const Saved& saved, const Scratch& scratch, Int tile, Int row,
                                 Int rows) {
    const Stage& s = shape.s;
    const Map map = shape.gradient();
    const Int scale = s.pool ? 2 : 1, size = map.groups.size(tile), channel = map.groups.start(tile);
    const Int right = s.stride_x * size, down = s.stride_y * map.row() * size;
    const Int above = saved.output_map.area(), pixels = shape.out_h * shape.out_w;
    V* totals = scratch.bias_sums + channel;
    for (Int y = row / scale; y < (row + rows) / scale; y++) {
        V* to = scratch.gradient + map.at(tile, scale * y * s.stride_y, 0);
        for (Int x = 0; x < shape.out_w; x++, to += scale * right) {
            const V* output = saved.output + saved.output_map.at(channel, y, x);
            const Int index = channel * pixels + y * shape.out_w + x;
            for (Int i = 0; i < size; i++) {
                const V g = back_through(scratch.output_gradient[index + i * pixels], output[i * above], s);
                totals[i] += g;
                if (!s.pool) {
                    to[i] = g;
                    continue;
                }
                const Mask winner = saved.winners[index + i * pixels];
                to[i] = winner == 0 ? g : V{};
                to[right + i] = winner == 1 ? g : V{};
                to[down + i] = winner == 2 ? g : V{};
                to[down + right + i] = winner == 3 ? g : V{};
            }
        }
    }
}

// sums[output] += gradient[pixel][output] * input[pixel + tap] over a stretch of rows, for four taps at once. The four
// share one vector per output channel in memory, lanes in turn: a quarter of the traffic, and big layers stay in cache.
template <int O>
void weight_gradient_tile(const V* gradient, Int gradient_row, Int gradient_step, const V* const (&input)[TAPS],
                          Int input_row, Int input_step, Int rows, Int columns, V* sums) {
    V acc[TAPS][O] = {};
    for (Int y = 0; y < rows; y++) {
        const V* g = gradient + y * gradient_row;
        const V *in0 = input[0] + y * input_row, *in1 = input[1] + y * input_row;
        const V *in2 = input[2] + y * input_row, *in3 = input[3] + y * input_row;
        for (Int x = 0; x < columns; x++) {
            const V taps[TAPS] = {*in0, *in1, *in2, *in3};
#pragma GCC unroll 8
            for (int o = 0; o < O; o++)
#pragma GCC unroll 8
                for (int t = 0; t < TAPS; t++) acc[t][o] += taps[t] * g[o];
            g += gradient_step;
            in0 += input_step, in1 += input_step, in2 += input_step, in3 += input_step;
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < O; o++)
        sums[o] += folded(folded(acc[0][o], acc[2][o]), folded(acc[1][o], acc[3][o]));
}

// The gradient of a tile's convolution, and with it the sums for its weights if they are wanted. Rows are taken in
// stretches that fit the first-level cache, since every tap walks over them again.
template <int O>
void backward_tile(const Shape& shape, const Saved& saved, const Scratch& scratch, Int tile, bool weights) {
    const Stage& s = shape.s;
    const Map in = shape.input(), out = shape.gradient();
    V* const sums = scratch.weight_sums + out.groups.start(tile) * shape.chunks();
    const Int stretch = most(2, L1_SHARE / (shape.conv_w * O * Int(sizeof(V))) / 2 * 2);
    for (Int y = 0; y < shape.conv_h; y += stretch) {
        const Int rows = least(stretch, shape.conv_h - y);
        through_activation_and_pool(shape, saved, scratch, tile, y, rows);
        if (!weights) continue;
        const V* gradient = scratch.gradient + out.at(tile, y * s.stride_y, 0);
        Int c = 0, ky = 0, kx = 0;
        for (Int chunk = 0; chunk < shape.chunks(); chunk++) {
            const V* input[TAPS];
            for (Int t = 0; t < TAPS; t++) {  // behind the last tap: the last once more, and nobody reads the result
                input[t] = saved.input + in.at(c, y * s.stride_y + ky - s.pad_y, kx - s.pad_x);
                if (chunk * TAPS + t + 1 >= shape.taps) continue;
                if (++kx == s.kernel_x) { kx = 0; if (++ky == s.kernel_y) ky = 0, c++; }
            }
            weight_gradient_tile<O>(gradient, out.row() * O * s.stride_y, s.stride_x * O, input,
                                    in.row() * s.stride_y, s.stride_x, rows, shape.conv_w, sums + chunk * O);
        }
    }
}

inline bool wanted(const Parameters& gradients) {
    return gradients.weight.data || gradients.bias || gradients.norm_weight || gradients.norm_bias;
}

void write_weight_gradient(const Shape& shape, const V* sums, const Tensor4& to) {
    const Stage& s = shape.s;
    const Split out = tiles(s.outputs);
    for (Int tile = 0; tile < out.count; tile++) {
        const Int size = out.size(tile);
        float* const first = to.data + out.start(tile) * to.strides[0];
        Int tap = 0;
        for (Int c = 0; c < s.channels; c++)
            for (Int ky = 0; ky < s.kernel_y; ky++)
                for (Int kx = 0; kx < s.kernel_x; kx++, tap++) {
                    float* weight = first + c * to.strides[1] + ky * to.strides[2] + kx * to.strides[3];
                    const Lane* partial = reinterpret_cast<const Lane*>(sums + tap / TAPS * size) + tap % TAPS;
                    for (Int o = 0; o < size; o++, partial += LANES) {
                        float total = partial[0];
                        for (int i = TAPS; i < LANES; i += TAPS) total += partial[i];
                        weight[o * to.strides[0]] = total;
                    }
                }
        sums += size * shape.chunks();
    }
}

// One call: the stages, and the memory of the batch's blocks, which lie `apart` bytes from each other (0 where one
// space serves all of them in turn).
struct Chain {
    const Stage* stages;
    Int count, batch, apart;
    char *memory, *scratch_space;

    Int blocks() const { return (batch + LANES - 1) / LANES; }
    Int images(Int block) const { return least(LANES, batch - block * LANES); }
    Saved saved(Int stage, Int block) const { return Saved(stages, count, stage, memory + block * apart); }
    Scratch scratch(Int stage, Int block = 0) const { return Scratch(stages, count, stage, scratch_space, block); }
    double* moments(Int stage) const { return saved(stage, 0).moments; }
};

// ---- batch normalisation --------------------------------------------------------------------------------------------

#include "normed.h"

// ---- what Python calls ----------------------------------------------------------------------------------------------

int64_t saved_bytes(const Stage* stages, int64_t count) { return Saved(stages, count, count - 1, nullptr).bytes; }

int64_t scratch_bytes(const Stage* stages, int64_t count, int64_t blocks) {
    const Scratch scratch(stages, count, count - 1, nullptr);
    return scratch.bytes + blocks * scratch.bytes_of_a_block;
}

int64_t by_patches(const Stage* stage) { return by_patches(convolution(*stage)); }

// The convolution of a stage for a block of images, with what follows it if nothing stands between.
void convolve(const Shape& shape, const Saved& saved, const float* weights, const float* bias) {
    const Stage& s = shape.s;
    const Correlation c = {shape.input(), s.kernel_y, s.kernel_x, s.stride_y, s.stride_x, s.pad_y, s.pad_x};
    const Split out = tiles(s.outputs);
    for (Int tile = 0; tile < out.count; tile++) {
#define CALL(O)                                                                         \
    if (s.pool) forward_tile<O, true>(shape, c, saved, weights, bias, out.start(tile)); \
    else forward_tile<O, false>(shape, c, saved, weights, bias, out.start(tile))
        FOR_TILE(out.size(tile), CALL)
#undef CALL
        weights += out.size(tile) * shape.taps;
    }
}

void forward(const Stage* stages, int64_t count, int64_t batch, const Tensor4* input, const Parameters* parameters,
             float* output, char* saved_blocks, char* scratch_space, int64_t keep, int64_t learn) {
    const Int apart = keep || learn ? saved_bytes(stages, count) : 0;
    const Chain chain = {stages, count, batch, apart, saved_blocks, scratch_space};
    for (Int i = 0; i < count; i++) pack(stages[i], parameters[i].weight, false, chain.scratch(i).packed);
    const Int outputs = Shape(stages[count - 1]).outputs(), together = learn ? chain.blocks() : 1;
    for (Int first = 0; first < chain.blocks(); first += together) {
        const Int last = first + together;
        for (Int b = first; b < last; b++)
            take_in(*input, b * LANES, chain.images(b), Shape(stages[0]).input(), chain.saved(0, b).input);
        for (Int i = 0; i < count; i++) {
            const Shape shape = convolution(stages[i]);
            const float* weights = chain.scratch(i).packed;
            for (Int b = first; b < last; b++)
                convolve(shape, chain.saved(i, b).around(shape, stages[i]), weights, parameters[i].bias);
            if (!stages[i].norm) continue;
            if (learn) take_moments(chain, i, parameters[i]);
            else recall_moments(stages[i], parameters[i], chain.moments(i));
            for (Int b = first; b < last; b++)
                normalise(Shape(stages[i]), shape, chain.saved(i, b), chain.moments(i), parameters[i]);
        }
        for (Int b = first; b < last; b++) {
            const Saved saved = chain.saved(count - 1, b);
            give_out(saved.output_map, saved.output, chain.images(b), output + b * LANES * outputs);
        }
    }
}

// The backward pass of a stage for a block of images, with images in the lanes.
void backward_in_lanes(const Shape& shape, const Saved& saved, const Scratch& scratch, bool weights, bool input) {
    const Stage& s = shape.s;
    const Split above = tiles(s.outputs), below = tiles(s.channels);
    for (Int tile = 0; tile < above.count; tile++) {
#define CALL(O) backward_tile<O>(shape, saved, scratch, tile, weights)
        FOR_TILE(above.size(tile), CALL)
#undef CALL
    }
    if (!input) return;
    const Map map = {planes(s.channels), s.height, s.width, 0, 0};
    const Correlation c = {shape.gradient(), s.kernel_y, s.kernel_x, 1, 1,
                           s.kernel_y - 1 - s.pad_y, s.kernel_x - 1 - s.pad_x};
    const float* turned = scratch.flipped;
    for (Int tile = 0; tile < below.count; tile++) {
#define CALL(O) input_gradient_tile<O>(c, scratch.gradient, turned, map, scratch.input_gradient, below.start(tile))
        FOR_TILE(below.size(tile), CALL)
#undef CALL
        turned += below.size(tile) * s.outputs * s.kernel_y * s.kernel_x;
    }
}

void backward(const Stage* stages, int64_t count, int64_t batch, const float* output_gradient,
              const Parameters* parameters, const Parameters* gradients, float* input_gradient, char* saved_blocks,
              char* scratch_space) {
    Int lowest = 0;  // the first stage that anybody wants a gradient of
    if (!input_gradient)
        while (lowest < count && !wanted(gradients[lowest])) lowest++;
    const Chain chain = {stages, count, batch, saved_bytes(stages, count), saved_blocks, scratch_space};
    bool norms = false;
    for (Int i = lowest; i < count; i++) {
        const Shape shape = convolution(stages[i]);
        const Scratch scratch = chain.scratch(i);
        norms |= stages[i].norm != 0;
        if (i > lowest || input_gradient) pack(stages[i], parameters[i].weight, true, scratch.flipped);
        for (Int v = 0; v < shape.s.outputs; v++) scratch.bias_sums[v] = V{};
        for (Int v = 0; v < shape.chunks() * shape.s.outputs; v++) scratch.weight_sums[v] = V{};
        if (!by_patches(shape)) continue;
        const Pools pools = scratch.pools(shape);
        pack_patches(stages[i], parameters[i].weight, pools);
        for (Int v = 0; v < pools.outputs * pools.patch.size(); v++) pools.sums[v] = V{};
    }
    const Shape top(stages[count - 1]);
    const Tensor4 from = {const_cast<float*>(output_gradient), {top.outputs(), top.out_h * top.out_w, top.out_w, 1}};
    const Map image = {planes(stages[0].channels), stages[0].height, stages[0].width, 0, 0};
    const Int together = norms ? chain.blocks() : 1;
    for (Int first = 0; first < chain.blocks(); first += together) {
        const Int last = first + together;
        for (Int b = first; b < last; b++)
            take_in(from, b * LANES, chain.images(b), top.output(),
                    chain.scratch(count - 1, b - first).output_gradient);
        for (Int i = count - 1; i >= lowest; i--) {
            const Shape shape = convolution(stages[i]);
            const bool weights = gradients[i].weight.data, input = i > lowest || input_gradient;
            if (stages[i].norm) sum_gradients(chain, i, gradients[i]);
            for (Int b = first; b < last; b++) {
                Scratch scratch = chain.scratch(i, b - first);
                const Saved saved = chain.saved(i, b);
                if (stages[i].norm) {
                    back_through_norm(chain, i, b, parameters[i]);
                    scratch.output_gradient = scratch.convolved_gradient;
                }
                if (!by_patches(shape) ||
                    !backward_by_patches(shape, saved, scratch.pools(shape), scratch.output_gradient, scratch.bias_sums,
                                         input ? scratch.input_gradient : nullptr, chain.images(b), weights))
                    backward_in_lanes(shape, saved.around(shape, stages[i]), scratch, weights, input);
            }
        }
        if (input_gradient)
            for (Int b = first; b < last; b++)
                give_out(image, chain.scratch(0, b - first).input_gradient, chain.images(b),
                         input_gradient + b * LANES * image.vectors());
    }
    for (Int i = lowest; i < count; i++) {
        const Shape shape = convolution(stages[i]);
        const Scratch scratch = chain.scratch(i);
        if (gradients[i].weight.data) {
            write_weight_gradient(shape, scratch.weight_sums, gradients[i].weight);
            if (by_patches(shape)) add_patches(stages[i], scratch.pools(shape), gradients[i].weight);
        }
        if (gradients[i].bias)
            for (Int o = 0; o < shape.s.outputs; o++) {
                float total = 0;
                for (Int lane = 0; lane < LANES; lane++) total += scratch.bias_sums[o][lane];
                gradients[i].bias[o] = total;
            }
    }
}

// Twenty independent multiply-adds in flight: enough to hide the latency of any current CPU, few enough for registers.
double peak(int64_t rounds) {
#if TILE == 6
    constexpr int chains = 20;
#else
    constexpr int chains = 10;
#endif
    V acc[chains] = {};
    V a = 1e-9f - V{}, b = 0.999f - V{};
    __asm__ volatile("" : "+m"(a), "+m"(b));  // hide the values: the loop must run
    const V x = a, y = b;
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 32
        for (int i = 0; i < chains; i++) acc[i] = acc[i] * y + x;
    V total = {};
    for (int i = 0; i < chains; i++) total += acc[i];
    __asm__ volatile("" : : "m"(total));
    return 2.0 * LANES * chains * double(rounds);
}

}  // namespace

#define NAME_(isa) kernels_##isa
#define NAME(isa) NAME_(isa)
#define TEXT_(isa) #isa
#define TEXT(isa) TEXT_(isa)

extern const Kernels NAME(ISA);
const Kernels NAME(ISA) = {TEXT(ISA), LANES, saved_bytes, scratch_bytes, by_patches, forward, backward, peak};
