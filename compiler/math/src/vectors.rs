/// Calls a function with the vector and fused instructions of this processor, for what is inlined into
/// it. Results are the same on every processor: the compiler neither fuses nor reorders operations, and
/// `mul_add` rounds once everywhere.
#[inline(always)]
pub fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn inner<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: the processor has AVX2 and FMA.
        return unsafe { inner(f) };
    }
    f()
}
