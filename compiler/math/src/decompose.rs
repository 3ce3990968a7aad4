//! Eigen- and singular vectors by `faer`, on the calling thread.

use faer::dyn_stack::{MemBuffer, MemStack, StackReq};
use faer::linalg::evd::{self, ComputeEigenvectors, tridiag};
use faer::linalg::householder;
use faer::linalg::qr::no_pivoting::factor as qr;
use faer::linalg::svd::{self, ComputeSvdVectors};
use faer::linalg::temp_mat_scratch;
use faer::{Col, Conj, Mat, MatMut, Par};

use super::{FactoriseError, LeadingVectors, power_of_two_below};

/// Rows per column from which a QR factorisation first pays off: half of the bidiagonalisation is
/// memory-bound.
const QR_FIRST_ASPECT: f64 = 1.25;

pub(super) fn eigen(mut matrix: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError> {
    let n = matrix.nrows();
    if n == 1 {
        return Ok(LeadingVectors {
            values: vec![matrix[(0, 0)]],
            vectors: Mat::identity(1, k),
        });
    }
    let block = qr::recommended_block_size::<f64>(n, n);
    let mut memory = MemBuffer::new(StackReq::any_of(&[
        evd::self_adjoint_evd_scratch::<f64>(
            n,
            ComputeEigenvectors::Yes,
            Par::Seq,
            Default::default(),
        ),
        householder::apply_block_householder_sequence_on_the_left_in_place_scratch::<f64>(
            n - 1,
            block,
            k,
        ),
    ]));
    let stack = MemStack::new(&mut memory);
    let tridiagonal = tridiagonalise(&mut matrix);
    let mut all = Mat::<f64>::zeros(n, n);
    let values = tridiagonal.eigenvalues(Some(all.as_mut()), stack)?;
    let mut vectors = Mat::from_fn(n, k, |i, j| all[(i, n - 1 - j)]);
    householder::apply_block_householder_sequence_on_the_left_in_place_with_conj(
        matrix.as_ref().submatrix(1, 0, n - 1, n - 1),
        tridiagonal.reflectors.as_ref(),
        Conj::No,
        vectors.as_mut().subrows_mut(1, n - 1),
        Par::Seq,
        stack,
    );
    Ok(LeadingVectors {
        values: values.into_iter().rev().collect(),
        vectors,
    })
}

pub(super) fn eigenvalues(mut matrix: Mat<f64>) -> Result<Vec<f64>, FactoriseError> {
    let n = matrix.nrows();
    if n == 1 {
        return Ok(vec![matrix[(0, 0)]]);
    }
    let tridiagonal = tridiagonalise(&mut matrix);
    drop(matrix);
    let mut memory = MemBuffer::new(temp_mat_scratch::<f64>(n, 1).array(2));
    let mut values = tridiagonal.eigenvalues(None, MemStack::new(&mut memory))?;
    values.sort_by(|a, b| b.total_cmp(a));
    Ok(values)
}

struct Tridiagonal {
    diagonal: Col<f64>,
    below: Col<f64>,
    scale: f64,
    reflectors: Mat<f64>,
}

impl Tridiagonal {
    /// Returns the eigenvalues, in increasing order if their vectors are wanted.
    fn eigenvalues(
        &self,
        vectors: Option<MatMut<'_, f64>>,
        stack: &mut MemStack,
    ) -> Result<Vec<f64>, FactoriseError> {
        let order = self.diagonal.nrows();
        let mut values = Col::<f64>::zeros(order);
        evd::tridiagonal_self_adjoint_evd(
            self.diagonal.as_diagonal(),
            self.below.as_diagonal(),
            values.as_mut().as_diagonal_mut(),
            vectors,
            Par::Seq,
            stack,
            Default::default(),
        )
        .map_err(|_| FactoriseError::NoConvergence { order })?;
        Ok(values.iter().map(|value| value * self.scale).collect())
    }
}

fn tridiagonalise(matrix: &mut Mat<f64>) -> Tridiagonal {
    let n = matrix.nrows();
    let block = qr::recommended_block_size::<f64>(n, n);
    let mut memory = MemBuffer::new(tridiag::tridiag_in_place_scratch::<f64>(
        n,
        Par::Seq,
        Default::default(),
    ));
    let mut reflectors = Mat::<f64>::zeros(block, n - 1);
    tridiag::tridiag_in_place(
        matrix.as_mut(),
        reflectors.as_mut(),
        Par::Seq,
        MemStack::new(&mut memory),
        Default::default(),
    );
    // faer 0.24 compares with absolute thresholds in its divide and conquer, which fails at small
    // and large norms. LAPACK scales the tridiagonal matrix to 1 there; a power of two does it
    // without rounding.
    let at = |i: usize, j: usize| if i < n { matrix[(i, j)] } else { 0.0 };
    let largest = (0..n)
        .map(|i| at(i, i).abs().max(at(i + 1, i).abs()))
        .fold(0.0, f64::max);
    let scale = power_of_two_below(largest);
    Tridiagonal {
        diagonal: Col::from_fn(n, |i| at(i, i) / scale),
        below: Col::from_fn(n, |i| at(i + 1, i) / scale),
        scale,
        reflectors,
    }
}

pub(super) fn right_singular(tall: Mat<f64>, k: usize) -> Result<LeadingVectors, FactoriseError> {
    let (m, n) = tall.shape();
    let square = if m as f64 >= QR_FIRST_ASPECT * n as f64 {
        qr_triangle(tall)
    } else {
        tall
    };
    let mut values = Col::<f64>::zeros(n);
    let mut vectors = Mat::<f64>::zeros(n, n);
    let mut memory = MemBuffer::new(svd::svd_scratch::<f64>(
        square.nrows(),
        n,
        ComputeSvdVectors::No,
        ComputeSvdVectors::Thin,
        Par::Seq,
        Default::default(),
    ));
    svd::svd(
        square.as_ref(),
        values.as_mut().as_diagonal_mut(),
        None,
        Some(vectors.as_mut()),
        Par::Seq,
        MemStack::new(&mut memory),
        Default::default(),
    )
    .map_err(|_| FactoriseError::NoConvergence { order: n })?;
    Ok(LeadingVectors {
        values: values.iter().copied().collect(),
        vectors: vectors.subcols(0, k).to_owned(),
    })
}

fn qr_triangle(mut tall: Mat<f64>) -> Mat<f64> {
    let (m, n) = tall.shape();
    let block = qr::recommended_block_size::<f64>(m, n);
    let mut reflectors = Mat::<f64>::zeros(block, n);
    let mut memory = MemBuffer::new(qr::qr_in_place_scratch::<f64>(
        m,
        n,
        block,
        Par::Seq,
        Default::default(),
    ));
    qr::qr_in_place(
        tall.as_mut(),
        reflectors.as_mut(),
        Par::Seq,
        MemStack::new(&mut memory),
        Default::default(),
    );
    Mat::from_fn(n, n, |i, j| if i <= j { tall[(i, j)] } else { 0.0 })
}
