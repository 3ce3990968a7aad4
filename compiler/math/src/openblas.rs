//! Eigen- and singular vectors by the system's OpenBLAS on one thread (feature `openblas`). A build
//! that does not know the processor silently falls back to slow code; then set `OPENBLAS_CORETYPE`
//! to a supported processor.

use std::ffi::{c_char, c_int};
use std::sync::Once;

use faer::Mat;
use ndarray::{Array2, ShapeBuilder};
use ndarray_linalg::{JobSvd, SVDDCInto};

use super::{FactoriseError, LeadingVectors, to_column_major};

/// LAPACK `dsyevd`; `ndarray-linalg` offers only the slower `dsyev`.
pub(super) fn eigen(matrix: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError> {
    let n = matrix.nrows();
    let mut vectors = to_column_major(matrix.as_ref());
    let mut values = vec![0.0; n];
    divide_and_conquer(&mut vectors, &mut values, true)?;
    Ok(LeadingVectors::from_ascending(values, &vectors, k))
}

pub(super) fn eigenvalues(matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
    let mut values = vec![0.0; matrix.nrows()];
    divide_and_conquer(&mut to_column_major(matrix.as_ref()), &mut values, false)?;
    values.reverse();
    Ok(values)
}

/// LAPACK `dgesdd`.
pub(super) fn right_singular(tall: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError> {
    use_one_thread();
    let (m, n) = tall.shape();
    let failed = FactoriseError::NoConvergence { order: n };
    let array = Array2::from_shape_vec((m, n).f(), to_column_major(tall.as_ref()))
        .map_err(|_| failed.clone())?;
    drop(tall);
    match array.svddc_into(JobSvd::Some) {
        Ok((_, values, Some(vt))) => Ok(LeadingVectors {
            values: values.to_vec(),
            vectors: Mat::from_fn(n, k, |i, j| vt[(j, i)]),
        }),
        _ => Err(failed),
    }
}

/// Replaces a symmetric column-major matrix by its eigenvectors, in increasing order of the
/// eigenvalues written to `values`; without vectors, destroys it.
fn divide_and_conquer(
    matrix: &mut [f64],
    values: &mut [f64],
    vectors: bool,
) -> Result<(), FactoriseError> {
    let order = values.len();
    let failed = FactoriseError::NoConvergence { order };
    let n = c_int::try_from(order).map_err(|_| failed.clone())?;
    if n == 0 || matrix.len() != order * order {
        return Err(failed);
    }
    use_one_thread();
    let (job, lower) = (if vectors { b'V' } else { b'N' } as c_char, b'L' as c_char);
    let mut call = |work: &mut [f64], iwork: &mut [c_int], query: bool| -> Option<c_int> {
        let length = |len: usize| c_int::try_from(len).ok();
        let (lwork, liwork) = if query {
            (-1, -1)
        } else {
            (length(work.len())?, length(iwork.len())?)
        };
        let mut info = 0;
        // SAFETY: matrix holds n x n and values n numbers, checked above; work and iwork hold lwork
        // and liwork numbers, or at least one each in a query, which writes nothing else; all
        // pointers are of live, distinct buffers.
        unsafe {
            lapack_sys::dsyevd_(
                &job,
                &lower,
                &n,
                matrix.as_mut_ptr(),
                &n,
                values.as_mut_ptr(),
                work.as_mut_ptr(),
                &lwork,
                iwork.as_mut_ptr(),
                &liwork,
                &mut info,
            );
        }
        Some(info)
    };
    let (mut work, mut iwork) = ([0.0], [0]);
    if call(&mut work, &mut iwork, true) != Some(0) {
        return Err(failed);
    }
    let mut work = vec![0.0; work[0] as usize];
    let mut iwork = vec![0; usize::try_from(iwork[0]).unwrap_or(0)];
    match call(&mut work, &mut iwork, false) {
        Some(0) => Ok(()),
        _ => Err(failed),
    }
}

fn use_one_thread() {
    // SAFETY: the function takes an int and is part of every build of OpenBLAS.
    unsafe extern "C" {
        safe fn openblas_set_num_threads(threads: c_int);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| openblas_set_num_threads(1));
}
