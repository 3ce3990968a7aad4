//! Loops over numbers in the vector instructions of the processor.

/// Defines a function compiled for baseline, AVX2 and AVX-512, together with its `#[inline(always)]`
/// callees; a call runs the widest variant that this processor supports.
///
/// All variants give the same results: the compiler neither fuses nor reorders floating-point
/// operations.
#[macro_export]
macro_rules! vectorised {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident $(<$T:ident: $bound:ident>)? (
            $($argument:ident: $type:ty),* $(,)?
        ) $(-> $result:ty)? $body:block
    ) => {
        $(#[$attribute])*
        $visibility fn $name $(<$T: $bound>)? ($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn plain $(<$T: $bound>)? ($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$T: $bound>)? ($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }

                #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")]
                fn avx512 $(<$T: $bound>)? ($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }

                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    if is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512bw")
                    {
                        // SAFETY: the processor has these instructions.
                        return unsafe { avx512($($argument),*) };
                    }
                    // SAFETY: the processor has these instructions.
                    return unsafe { avx2($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    };
}

/// Independent partial results of a loop, for the widest vectors.
pub const CHAINS: usize = 8;

/// Returns the largest of numbers that are not NaN, or NaN if that is the first; the default without
/// numbers.
#[inline(always)]
pub fn largest<T: Copy + Default + PartialOrd>(x: &[T]) -> T {
    let larger = |max: T, x: T| if x > max { x } else { max };
    let (chunks, rest) = x.as_chunks::<CHAINS>();
    let mut chains = [x.first().copied().unwrap_or_default(); CHAINS];
    for chunk in chunks {
        // Indexed, because a zipped iterator is not inlined here.
        for chain in 0..CHAINS {
            chains[chain] = larger(chains[chain], chunk[chain]);
        }
    }
    rest.iter().copied().chain(chains).fold(chains[0], larger)
}

/// Returns `Σ f(xᵢ, yᵢ)` in float64, for slices of the same length.
#[inline(always)]
pub fn sum_of<T: Copy + Into<f64>>(x: &[T], y: &[T], f: impl Fn(f64, f64) -> f64) -> f64 {
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<CHAINS>(), y.as_chunks::<CHAINS>());
    let mut chains = [0.0; CHAINS];
    for (x, y) in x.iter().zip(y) {
        for chain in 0..CHAINS {
            chains[chain] += f(x[chain].into(), y[chain].into());
        }
    }
    let rest = x_rest
        .iter()
        .zip(y_rest)
        .map(|(&x, &y)| f(x.into(), y.into()));
    chains.iter().sum::<f64>() + rest.sum::<f64>()
}

/// Returns `eˣ` with a relative error below 3e-7, clamped to normal numbers, by the polynomial of
/// Cephes (Moshier). Unlike the system's function, loops over it vectorise.
#[inline(always)]
pub fn exp_f32(x: f32) -> f32 {
    /// Adding it leaves an integer in the last bits.
    const ROUND: f32 = 12_582_912.0;
    /// `ln 2` in two parts; multiples of the first are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.clamp(-87.3, 88.3);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let exponent = rounded - ROUND;
    let r = x - exponent * LN_2[0] - exponent * LN_2[1];
    let mut p = 1.987_569_2e-4;
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p * r + coefficient;
    }
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * scale
}

/// Returns `eˣ` with a relative error below 5e-16, for `x` clamped to between -708 and 709. Unlike the
/// system's function, loops over it vectorise.
#[inline(always)]
pub fn exp_f64(x: f64) -> f64 {
    /// Adding it leaves an integer in the last bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// `ln 2` in two parts; multiples of the first are exact.
    const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    /// Coefficients of the Taylor series from degree 12 down to 2; the rest is below an ulp.
    const INVERSE_FACTORIALS: [f64; 11] = {
        let (mut inverses, mut degree, mut factorial) = ([0.0; 11], 2, 2.0);
        while degree <= 12 {
            inverses[12 - degree] = 1.0 / factorial;
            degree += 1;
            factorial *= degree as f64;
        }
        inverses
    };
    let x = x.clamp(-708.0, 709.0);
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let exponent = rounded - ROUND;
    let r = x - exponent * LN_2[0] - exponent * LN_2[1];
    let mut p = 0.0;
    for coefficient in INVERSE_FACTORIALS {
        p = p * r + coefficient;
    }
    let scale = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    (p * r * r + r + 1.0) * scale
}

#[cfg(test)]
mod tests;
