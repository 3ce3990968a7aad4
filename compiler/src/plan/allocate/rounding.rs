use htc_formats::DType;

use crate::math::codes::gaussian_relative_error;
use crate::plan::form::MatrixForm;

/// Approximate, for normally distributed elements with the encoders of this program.
const ROUNDING_LOSS: [(DType, f64); 14] = [
    (DType::F16, 4.4e-8),
    (DType::BF16, 2.8e-6),
    (DType::Q8_0, 2.3e-5),
    (DType::Q6K, 2.6e-4),
    (DType::Q5K, 1.2e-3),
    (DType::Q5_1, 1.1e-3),
    (DType::Q5_0, 1.6e-3),
    (DType::Q4K, 4.7e-3),
    (DType::Q4_1, 4.7e-3),
    (DType::Q4_0, 6.3e-3),
    (DType::IQ4NL, 5.2e-3),
    (DType::IQ4XS, 5.3e-3),
    (DType::Q3K, 2.0e-2),
    (DType::Q2K, 6.6e-2),
];

/// Returns the fraction of the energy lost by rounding; zero for forms as in the source. The errors
/// of two factors are independent, and both affect the product.
pub(super) fn rounding_loss(form: &MatrixForm) -> f64 {
    let of = |dtype: DType| {
        let known = ROUNDING_LOSS.iter().find(|(of, _)| *of == dtype);
        known.map_or(0.0, |(_, lost)| *lost)
    };
    match *form {
        MatrixForm::Unchanged => 0.0,
        MatrixForm::Dense { weight } => of(weight),
        MatrixForm::ColumnGroups { ref codes } => codes.weighted_mean(gaussian_relative_error),
        MatrixForm::LowRank { a, b, .. } => of(a) + of(b),
        MatrixForm::SharedBasis {
            basis, projected, ..
        } => of(basis) + of(projected),
        MatrixForm::Residual { base, .. } => of(base),
    }
}

#[cfg(test)]
mod tests;
