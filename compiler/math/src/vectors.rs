/// Defines a function that is compiled once for each set of vector instructions, with what is always
/// inlined into it, and runs with the widest of this processor.
///
/// Results are the same on every processor: the compiler neither fuses nor reorders operations.
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
