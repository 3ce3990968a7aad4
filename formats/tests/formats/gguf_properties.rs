//! Properties of GGUF files: round trips and absence of panics.

use htc_formats::gguf::{Array, Contents, GgmlType, Gguf, GgufError, Value, Writer};
use htc_formats::{architecture, block, limits, vocab::Vocabulary};
use proptest::prelude::*;

fn exercise(bytes: &[u8]) {
    let Ok(contents) = Contents::parse(bytes) else {
        return;
    };
    for tensor in contents.tensors() {
        let data = &bytes[tensor.range.clone()];
        if let Ok(dtype) = tensor.dtype() {
            let expected = dtype.matrix_bytes(tensor.rows(), tensor.cols());
            assert_eq!(expected, Some(data.len()));
        }
        assert_eq!(contents.tensor(&tensor.name), Some(tensor));
    }
    for (key, value) in contents.metadata() {
        assert!(std::ptr::eq(contents.get(key).unwrap(), value));
    }
    let _ = Vocabulary::from_gguf(&contents);
    if let Ok((hyper, tensors)) = architecture::bind(&contents) {
        hyper.check().unwrap();
        assert_eq!(tensors.len(), contents.tensors().len());
    }
}

fn array(depth: u32) -> BoxedStrategy<Array> {
    use prop::collection::vec;
    let flat = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec("\\PC{0,8}", 0..9).prop_map(Array::String),
    ];
    if depth == limits::MAX_ARRAY_DEPTH {
        return flat.boxed();
    }
    prop_oneof![4 => flat, 1 => vec(array(depth + 1), 0..4).prop_map(Array::Array)].boxed()
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        "\\PC{0,20}".prop_map(Value::String),
        array(1).prop_map(Value::Array),
    ]
}

fn tensors() -> impl Strategy<Value = Vec<(GgmlType, Vec<u64>, u8)>> {
    let kind = prop::sample::select(GgmlType::ALL);
    let one = (
        kind,
        1..4u64,
        prop::collection::vec(1..4u64, 0..4),
        any::<u8>(),
    );
    let one = one.prop_map(|(kind, blocks, rest, fill)| {
        let mut dims = vec![blocks * kind.block_len()];
        dims.extend(rest);
        (kind, dims, fill)
    });
    prop::collection::vec(one, 0..6)
}

proptest! {
    #[test]
    fn written_file_is_read_back(
        metadata in prop::collection::btree_map("[a-z.]{0,12}", value(), 0..8),
        tensors in tensors(),
        shift in 0..9u32,
    ) {
        let sizes = tensors.iter().map(|(kind, dims, _)| {
            kind.matrix_bytes(dims[1..].iter().product(), dims[0]).unwrap() as usize
        });
        let data: Vec<Vec<u8>> =
            tensors.iter().zip(sizes).map(|((_, _, fill), size)| vec![*fill; size]).collect();
        let mut writer = Writer::new();
        writer.alignment(1 << shift);
        for (key, value) in &metadata {
            writer.metadata(key.as_str(), value.clone());
        }
        for (i, ((kind, dims, _), data)) in tensors.iter().zip(&data).enumerate() {
            writer.tensor(format!("tensor {i}"), *kind, dims, data);
        }
        let bytes = writer.to_bytes().unwrap();

        let contents = Contents::parse(&bytes).unwrap();
        prop_assert_eq!(contents.alignment(), 1 << shift);
        prop_assert_eq!(contents.data_offset() % (1 << shift), 0);
        // NaN equals itself as text.
        let read = &contents.metadata()[..metadata.len()];
        for ((key, value), (read_key, read_value)) in metadata.iter().zip(read) {
            prop_assert_eq!(key, read_key);
            prop_assert_eq!(format!("{value:?}"), format!("{read_value:?}"));
        }
        prop_assert_eq!(contents.tensors().len(), tensors.len());
        for (i, ((kind, dims, _), data)) in tensors.iter().zip(&data).enumerate() {
            let tensor = contents.tensor(&format!("tensor {i}")).unwrap();
            prop_assert_eq!(tensor, &contents.tensors()[i]);
            prop_assert_eq!((tensor.ggml_type, &tensor.dims), (*kind, dims));
            prop_assert_eq!(&bytes[tensor.range.clone()], data.as_slice());
            prop_assert_eq!((tensor.rows() * tensor.cols()) as u64, dims.iter().product::<u64>());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        exercise(&bytes);
        let mut bytes = bytes;
        bytes.splice(..bytes.len().min(8), *b"GGUF\x03\0\0\0");
        exercise(&bytes);
    }

    #[test]
    fn modified_model_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = crate::gguf_common::tiny_model();
        let head = Contents::parse(&bytes).unwrap().data_offset() as usize;
        for (place, value) in changes {
            bytes[place.index(head)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        exercise(&bytes);
    }
}

#[test]
fn extreme_bytes_in_the_head_never_panic() {
    let valid = crate::gguf_common::tiny_model();
    let head = Contents::parse(&valid).unwrap().data_offset() as usize;
    let mut bytes = valid.clone();
    for at in 0..head {
        for value in [0, 1, 0x7f, 0x80, 0xff, !valid[at]] {
            bytes[at] = value;
            exercise(&bytes);
        }
        bytes[at] = valid[at];
    }
}

#[test]
fn writer_refuses_files_that_the_reader_refuses() {
    let error = |writer: &Writer<'_>| writer.to_bytes().unwrap_err();
    let zeros = [0; 64];

    let mut writer = Writer::new();
    writer
        .metadata("k", Value::U8(0))
        .metadata("k", Value::U8(1));
    assert!(matches!(error(&writer), GgufError::DuplicateKey { key } if key == "k"));

    let mut writer = Writer::new();
    writer.metadata("general.alignment", Value::U32(64));
    assert!(matches!(error(&writer), GgufError::DuplicateKey { .. }));

    let mut writer = Writer::new();
    writer.alignment(48);
    assert!(matches!(error(&writer), GgufError::Alignment { found: 48 }));

    let mut writer = Writer::new();
    writer.tensor("t", GgmlType::F32, &[16], &zeros[..60]);
    assert!(matches!(
        error(&writer),
        GgufError::DataLength {
            expected: 64,
            found: 60,
            ..
        }
    ));

    for dims in [&[][..], &[0], &[1, 1, 1, 1, 1], &[16, u64::MAX]] {
        let mut writer = Writer::new();
        writer.tensor("t", GgmlType::F32, dims, &zeros);
        assert!(
            matches!(error(&writer), GgufError::ShapeForType { .. }),
            "{dims:?}"
        );
    }

    let mut writer = Writer::new();
    writer.tensor("n".repeat(256), GgmlType::F32, &[16], &zeros);
    assert!(matches!(
        error(&writer),
        GgufError::Limit { found: 256, .. }
    ));

    let mut deep = Array::U8(vec![1]);
    for _ in 0..limits::MAX_ARRAY_DEPTH {
        deep = Array::Array(vec![deep]);
    }
    let mut writer = Writer::new();
    writer.metadata("deep", Value::Array(deep));
    assert!(matches!(error(&writer), GgufError::Limit { limit: 4, .. }));
}

/// The file was written by gguf-py (`scripts/make_block_fixtures.py`).
#[test]
fn file_written_by_gguf_py_is_read() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/every_type.gguf"
    );
    let gguf = Gguf::open(path).unwrap();
    assert_eq!((gguf.version(), gguf.alignment()), (3, 64));
    let strings = |list: &[&str]| Array::String(list.iter().map(|s| s.to_string()).collect());
    for (key, expected) in [
        ("one.uint8", Value::U8(200)),
        ("one.int8", Value::I8(-100)),
        ("one.uint16", Value::U16(60000)),
        ("one.int16", Value::I16(-30000)),
        ("one.uint32", Value::U32(4_000_000_000)),
        ("one.int32", Value::I32(-2_000_000_000)),
        ("one.float32", Value::F32(0.5)),
        ("one.bool", Value::Bool(true)),
        ("one.string", Value::String("grüße".to_owned())),
        ("one.uint64", Value::U64(1 << 63)),
        ("one.int64", Value::I64(-(1 << 62))),
        ("one.float64", Value::F64(1e300)),
        ("list.int32", Value::Array(Array::I32(vec![1, -2, 3]))),
        ("list.float32", Value::Array(Array::F32(vec![0.5, -0.25]))),
        (
            "list.bool",
            Value::Array(Array::Bool(vec![true, false, true])),
        ),
        (
            "list.string",
            Value::Array(strings(&["a", "", "\u{2581}b"])),
        ),
        (
            "list.list",
            Value::Array(Array::Array(vec![
                Array::I32(vec![1, 2]),
                Array::I32(vec![3]),
            ])),
        ),
    ] {
        assert_eq!(gguf.get(key), Some(&expected), "{key}");
    }

    let kinds: Vec<&str> = gguf.tensors().iter().map(|t| t.ggml_type.name()).collect();
    assert_eq!(kinds, ["F32", "F16", "I32", "Q8_0", "Q4_0", "Q5_1"]);
    let decoded = |name: &str| {
        let tensor = gguf.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.rows() * tensor.cols()];
        block::decode(tensor.dtype().unwrap(), gguf.bytes(tensor), &mut values).unwrap();
        (tensor.dims.clone(), values)
    };
    let counting: Vec<f32> = (0..24).map(|x| x as f32).collect();
    assert_eq!(decoded("f32"), (vec![4, 3, 2], counting.clone()));
    assert_eq!(decoded("f16"), (vec![4, 3, 2], counting));
    let (dims, values) = decoded("q8_0");
    assert_eq!(dims, [64, 2]);
    assert!(
        values
            .iter()
            .enumerate()
            .all(|(i, x)| (x - i as f32).abs() < 0.57)
    );
    assert_eq!(decoded("i32").1, [0.0, 1.0, 2.0, 3.0, 4.0]);
    let (dims, values) = decoded("q5_1");
    assert_eq!(dims, [64, 2]);
    assert!(values.iter().enumerate().all(|(i, x)| *x == i as f32));
}

#[test]
fn rewriting_is_idempotent() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/every_type.gguf"
    );
    let gguf = Gguf::open(path).unwrap();
    let write = |gguf: &Contents, bytes: &[u8]| {
        let mut writer = Writer::new();
        writer.alignment(gguf.alignment());
        for (key, value) in gguf.metadata() {
            if key != "general.alignment" {
                writer.metadata(key.as_str(), value.clone());
            }
        }
        for tensor in gguf.tensors() {
            let data = &bytes[tensor.range.clone()];
            writer.tensor(tensor.name.as_str(), tensor.ggml_type, &tensor.dims, data);
        }
        writer.to_bytes().unwrap()
    };
    let first = write(&gguf, gguf.map());
    assert_eq!(first.len(), gguf.map().len());
    let again = Contents::parse(&first).unwrap();
    assert_eq!(again.tensors(), gguf.tensors());
    assert_eq!(write(&again, &first), first);
}
