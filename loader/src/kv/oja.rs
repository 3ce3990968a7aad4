//! Online subspace updates by Oja's rule (Oja 1982; OjaKV, section 5.2 and algorithm 1), in
//! float64.
//!
//! A basis is a matrix `U` with orthonormal columns, stored as rows `[rank, size]`.

/// Computes a step of Oja's rule for a batch of vectors `x`:
///
/// `U ← QR(U + h Σ (x − U y) yᵀ)` with `y = Uᵀ x` and `h = min(η r / Σ‖y‖², 1 / λ)`,
///
/// where `r` is the rank and `λ` the largest eigenvalue of `Σ y yᵀ`.
///
/// The paper's rule has `h = η`. Keys of trained models have norms of ten and more, so that `η
/// Σ‖y‖²` is in the hundreds, while a step converges below 2: it would replace the basis by the
/// last batch. Dividing by the mean energy of a coordinate makes the step independent of the number
/// and scale of the vectors. Dividing by `Σ‖x‖²` instead moved the bases of the demo model a tenth
/// as far and gained next to nothing. The bound prevents overshooting.
///
/// The columns keep their order. The step is orthogonal to `U`, so singular values stay at least 1.
/// A batch without energy in the basis changes nothing.
pub fn oja_step(basis: &[f32], size: usize, vectors: &[&[f32]], rate: f64) -> Vec<f32> {
    let rank = basis.len().checked_div(size).unwrap_or(0);
    let mut gradient = vec![0.0; basis.len()];
    let mut gram = vec![0.0; rank * rank];
    for x in vectors {
        let coordinates: Vec<f64> = basis.chunks_exact(size).map(|u| dot(u, x)).collect();
        let mut residual: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        for (u, y) in basis.chunks_exact(size).zip(&coordinates) {
            for (residual, &u) in residual.iter_mut().zip(u) {
                *residual -= y * f64::from(u);
            }
        }
        for (gradient, y) in gradient.chunks_exact_mut(size).zip(&coordinates) {
            add(gradient, *y, &residual);
        }
        for (gram, y) in gram.chunks_exact_mut(rank).zip(&coordinates) {
            add(gram, *y, &coordinates);
        }
    }
    let energy: f64 = gram.iter().step_by(rank + 1).sum();
    if energy == 0.0 {
        return basis.to_vec();
    }
    let factor = (rate * rank as f64 / energy).min(1.0 / largest_eigenvalue(&gram, rank));
    let mut next: Vec<f64> = basis.iter().map(|&u| u.into()).collect();
    add(&mut next, factor, &gradient);
    orthonormalise(&mut next, size);
    next.into_iter().map(|u| u as f32).collect()
}

fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += factor * x;
    }
}

/// Estimates the largest eigenvalue of a positive semidefinite matrix by power iteration, to a few
/// per cent.
fn largest_eigenvalue(matrix: &[f64], size: usize) -> f64 {
    const POWERS: usize = 16;
    let diagonal = |i: usize| matrix[i * (size + 1)];
    let best = (0..size).fold(0, |best, i| {
        if diagonal(i) > diagonal(best) {
            i
        } else {
            best
        }
    });
    let mut x = matrix[best * size..(best + 1) * size].to_vec();
    let mut value = diagonal(best);
    for _ in 0..POWERS {
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        x.iter_mut().for_each(|x| *x /= norm);
        let rows = matrix.chunks_exact(size);
        let next: Vec<f64> = rows
            .map(|row| row.iter().zip(&x).map(|(a, b)| a * b).sum())
            .collect();
        value = next.iter().map(|x| x * x).sum::<f64>().sqrt();
        x = next;
    }
    value
}

/// Orthonormalises rows by modified Gram-Schmidt, which suffices for well-conditioned rows.
pub(super) fn orthonormalise(rows: &mut [f64], size: usize) {
    for index in 0..rows.len() / size {
        let (before, rest) = rows.split_at_mut(index * size);
        let row = &mut rest[..size];
        for other in before.chunks_exact(size) {
            let product: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
            for (row, other) in row.iter_mut().zip(other) {
                *row -= product * other;
            }
        }
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        for x in row {
            *x /= norm;
        }
    }
}

/// Returns `U_newᵀ U_old`, `[new rank, old rank]`, which converts coordinates.
pub fn transition(new: &[f32], old: &[f32], size: usize) -> Vec<f32> {
    let size = size.max(1);
    let products = new
        .chunks_exact(size)
        .flat_map(|new| old.chunks_exact(size).map(move |old| dot(new, old) as f32));
    products.collect()
}

/// Returns ‖P_1 − P_2‖_F of the projections on two bases of one rank: `√2 ‖U_2 − U_1 U_1ᵀ U_2‖_F`.
pub fn projection_distance(first: &[f32], second: &[f32], size: usize) -> f64 {
    let size = size.max(1);
    let residual = |u: &[f32]| residual_energy(first, u);
    (2.0 * second.chunks_exact(size).map(residual).sum::<f64>()).sqrt()
}

/// Returns tr(U_1ᵀ U_2 U_2ᵀ U_1) / r of two bases of one rank: 1 for equal spans (OjaKV, section
/// 4).
pub fn subspace_overlap(first: &[f32], second: &[f32], size: usize) -> f64 {
    let rank = first.len() / size.max(1);
    let transition = transition(first, second, size);
    transition
        .iter()
        .map(|&t| f64::from(t).powi(2))
        .sum::<f64>()
        / rank.max(1) as f64
}

/// Returns the squared length of what `x` has outside the span of orthonormal rows.
pub(crate) fn residual_energy(rows: &[f32], x: &[f32]) -> f64 {
    let mut rest: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    for row in rows.chunks_exact(x.len().max(1)) {
        let product = dot(row, x);
        for (rest, &number) in rest.iter_mut().zip(row) {
            *rest -= product * f64::from(number);
        }
    }
    rest.iter().map(|x| x * x).sum()
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
    products.sum()
}
