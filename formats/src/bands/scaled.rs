//! Scaling of the rows of an encoded matrix.

use half::f16;

use super::{CodeKind, CodeLayout, Codes, ColumnGroupMatrix};
use crate::CodecError;

impl CodeLayout {
    /// Multiplies each row of a matrix by a factor by changing the row scales only, rounded to the
    /// nearest f16.
    ///
    /// # Errors
    /// [`CodecError::ColumnGroupLength`] if `bytes` is no matrix with one row per factor;
    /// [`CodecError::InconsistentClassMap`] for an inconsistent class map; [`CodecError::Scale`] if
    /// a product is not finite. After an error the content of `bytes` is unspecified.
    pub fn scale_rows(&self, bytes: &mut [u8], factors: &[f32]) -> Result<(), CodecError> {
        let rows = factors.len();
        let view = self.view(rows, bytes)?;
        match self {
            CodeLayout::Uniform(codes) => codes.scale_rows(bytes, factors),
            CodeLayout::Classes(classes) => {
                view.check()?;
                let mut of_classes = vec![Vec::new(); classes.iter().len()];
                if let ColumnGroupMatrix::Classes(classed) = view {
                    for (row, &factor) in factors.iter().enumerate() {
                        of_classes[classed.locate_row(row).0].push(factor);
                    }
                }
                let each = classes.iter().zip(&of_classes).enumerate();
                for (index, (class, factors)) in each {
                    let place = classes.class_range(index);
                    class.codes.scale_rows(&mut bytes[place], factors)?;
                }
                Ok(())
            }
        }
    }
}

impl Codes {
    fn scale_rows(&self, bytes: &mut [u8], factors: &[f32]) -> Result<(), CodecError> {
        for kind in CodeKind::ALL {
            let Some(first) = self.row_scales_offset(factors.len(), kind) else {
                continue;
            };
            let (scales, _) = bytes[first..].as_chunks_mut::<2>();
            for ((index, scale), &factor) in scales.iter_mut().enumerate().zip(factors) {
                let value = f16::from_f32(f16::from_le_bytes(*scale).to_f32() * factor);
                if !value.is_finite() {
                    return Err(CodecError::Scale {
                        axis: "row",
                        index,
                        value: value.to_f32(),
                    });
                }
                *scale = value.to_le_bytes();
            }
        }
        Ok(())
    }
}
