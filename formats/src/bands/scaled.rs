//! Matrices whose rows are multiplied by factors, with the codes that they have.

use half::f16;

use super::{Banded, BandsError, Codes, Kind, Layout};

impl Layout {
    /// Multiplies the rows of a matrix by a factor each, through the scales of rows alone, rounded to the
    /// nearest f16.
    ///
    /// # Errors
    /// [`BandsError::Length`] where they are not those of a matrix of as many rows as there are factors; [`BandsError::Rows`] for classes whose map
    /// contradicts itself; [`BandsError::Scale`] where a product is not finite. What `bytes` holds after an error is not
    /// specified.
    pub fn scale_rows(&self, bytes: &mut [u8], factors: &[f32]) -> Result<(), BandsError> {
        let rows = factors.len();
        let view = self.view(rows, bytes)?;
        match self {
            Layout::Whole(codes) => codes.scale_rows(bytes, factors),
            Layout::Classes(classes) => {
                view.check()?;
                let mut of_classes = vec![Vec::new(); classes.iter().len()];
                if let Banded::Classes(classed) = view {
                    for (row, &factor) in factors.iter().enumerate() {
                        of_classes[classed.place(row).0].push(factor);
                    }
                }
                let each = classes.iter().zip(&of_classes).enumerate();
                for (index, (class, factors)) in each {
                    let place = classes.place(index);
                    class.codes.scale_rows(&mut bytes[place], factors)?;
                }
                Ok(())
            }
        }
    }
}

impl Codes {
    fn scale_rows(&self, bytes: &mut [u8], factors: &[f32]) -> Result<(), BandsError> {
        for kind in [Kind::Levels, Kind::Trellis] {
            let Some(first) = self.row_scales(factors.len(), kind) else {
                continue;
            };
            let (scales, _) = bytes[first..].as_chunks_mut::<2>();
            for ((index, scale), &factor) in scales.iter_mut().enumerate().zip(factors) {
                let value = f16::from_f32(f16::from_le_bytes(*scale).to_f32() * factor);
                if !value.is_finite() {
                    return Err(BandsError::Scale {
                        of: "row",
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
