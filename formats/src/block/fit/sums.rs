//! Sums in a fixed order, and rounding in operations of vectors.

/// Partial sums, so that a loop over numbers is one of vectors.
pub(super) const LANES: usize = 8;

/// Numbers that are all below this decode to zero whatever their step is, because the least step
/// of every format is the least f16, 2^-24; squares of larger ones are ordinary numbers.
pub(super) const NEGLIGIBLE: f32 = 1.0 / (1_u64 << 40) as f32;

/// `1 / x`, or 0: what a step of zero makes of every number.
#[inline(always)]
pub(super) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The integer from `low` to `high` that is nearest to `value`, ties to even; `low` for a NaN. The
/// magnitudes of `low` and `high` are small.
#[inline(always)]
pub(super) fn nearest(value: f32, low: f32, high: f32) -> f32 {
    // 1.5 · 2^23: sums with it have no digits behind the point.
    const ROUND: f32 = 12_582_912.0;
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    (value + ROUND) - ROUND
}

/// A whole number from 0 to 255 as a byte: its bits once it has no digits before 2^0.
#[inline(always)]
pub(super) fn byte(whole: f32) -> u8 {
    (whole + 8_388_608.0).to_bits() as u8
}

#[inline(always)]
pub(super) fn total(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Sums over the numbers of a run, from what a number adds to each.
#[inline(always)]
pub(super) fn sums<const N: usize, const S: usize>(
    x: &[f32; N],
    w: &[f32; N],
    terms: impl Fn(f32, f32) -> [f32; S],
) -> [f32; S] {
    let mut sums = [[0.0; LANES]; S];
    let (x, w) = (x.as_chunks::<LANES>().0, w.as_chunks::<LANES>().0);
    for (x, w) in x.iter().zip(w) {
        for lane in 0..LANES {
            let terms = terms(x[lane], w[lane]);
            for (sum, term) in sums.iter_mut().zip(terms) {
                sum[lane] += term;
            }
        }
    }
    sums.map(total)
}
