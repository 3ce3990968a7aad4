use htc_formats::bands::{CODEBOOK_UNIT, Code, CodeKind, Codes, ColumnGroupWriter};

use super::*;

#[test]
fn columns_are_scaled_before_the_vector_is_rounded() {
    let codes = Codes::uniform(Code::codebook(8).unwrap(), 32).unwrap();
    let mut packer = ColumnGroupWriter::new(&codes, 1);
    packer
        .set_row_scale(CodeKind::Codebook, 0, 1.0 / CODEBOOK_UNIT)
        .unwrap();
    packer.set_codebook_scales(0, 0, &[1; 16]);
    let mut weights = [0; 64];
    weights[..4].copy_from_slice(&[1, 255, 3, 0]);
    packer.set_codebook_codes(0, 0, 0, &weights);
    let bytes = packer.finish();
    let w = ColumnGroups::new(&codes, 1, &bytes).unwrap();
    let mut x = [0.0; 32];
    x[..4].copy_from_slice(&[127.0, 5.4, -2.0, 1e-3]);
    let mut y = [0.0];
    quantised_column_groups(w, 1, &x, &mut y).unwrap();
    assert_eq!(y, [127.0 - 5.0 - 6.0]);
    assert!(quantised_column_groups(w, 2, &x, &mut y).is_err());
}
