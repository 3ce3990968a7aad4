use super::*;

#[test]
fn identifiers_are_unique_and_found() {
    for &kind in GgmlType::ALL {
        assert_eq!(GgmlType::from_id(kind.id()), Some(kind));
        assert!(kind.block_len() > 0 && kind.block_bytes() > 0);
    }
    for id in [4, 5, 42, 255, u32::MAX] {
        assert_eq!(GgmlType::from_id(id), None);
    }
}

#[test]
fn both_tables_of_block_sizes_agree() {
    for &dtype in DType::ALL {
        let kind = GgmlType::from_dtype(dtype).unwrap();
        assert_eq!(kind.dtype(), Some(dtype));
        assert_eq!(kind.block_len(), dtype.block_len() as u64);
        assert_eq!(kind.block_bytes(), dtype.block_bytes() as u64);
    }
}
