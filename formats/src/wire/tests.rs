use super::*;

#[test]
fn written_values_are_read_back() {
    let mut bytes = Vec::new();
    put_u8(&mut bytes, 0xfe);
    put_u16(&mut bytes, 0xfedc);
    put_u32(&mut bytes, 0xfedc_ba98);
    put_u64(&mut bytes, 0xfedc_ba98_7654_3210);
    put_i8(&mut bytes, -2);
    put_i16(&mut bytes, -300);
    put_i32(&mut bytes, -70_000);
    put_i64(&mut bytes, -(1 << 40));
    put_f32(&mut bytes, -0.5);
    put_f64(&mut bytes, 1e300);
    assert_eq!(bytes[..7], [0xfe, 0xdc, 0xfe, 0x98, 0xba, 0xdc, 0xfe]);
    let mut cursor = Cursor::new(&bytes);
    assert_eq!(cursor.u8(), Ok(0xfe));
    assert_eq!(cursor.u16(), Ok(0xfedc));
    assert_eq!(cursor.u32(), Ok(0xfedc_ba98));
    assert_eq!(cursor.u64(), Ok(0xfedc_ba98_7654_3210));
    assert_eq!(cursor.i8(), Ok(-2));
    assert_eq!(cursor.i16(), Ok(-300));
    assert_eq!(cursor.i32(), Ok(-70_000));
    assert_eq!(cursor.i64(), Ok(-(1 << 40)));
    assert_eq!(cursor.f32(), Ok(-0.5));
    assert_eq!(cursor.f64(), Ok(1e300));
    assert_eq!(cursor.remaining(), 0);
}

#[test]
fn failed_read_does_not_move_the_cursor() {
    let mut cursor = Cursor::new(b"\x02\xffabc");
    let truncated = |offset, needed, available| CodecError::Truncated {
        offset,
        needed,
        available,
    };
    assert_eq!(cursor.u64(), Err(truncated(0, 8, 5)));
    let (offset, found) = (0, 2);
    assert_eq!(cursor.bool(), Err(CodecError::NotBool { offset, found }));
    assert_eq!(cursor.u8(), Ok(2));
    assert_eq!(cursor.str(3), Err(CodecError::NotUtf8 { offset: 1 }));
    assert_eq!(cursor.u8(), Ok(0xff));
    assert_eq!(cursor.bytes(u64::MAX), Err(truncated(2, u64::MAX, 3)));
    assert_eq!(cursor.str(3), Ok("abc"));
    assert_eq!(cursor.bytes(0), Ok(&b""[..]));
    assert_eq!(cursor.u8(), Err(truncated(5, 1, 0)));
}

#[test]
fn alignment_never_overflows() {
    assert_eq!(align_up(0, 32), Some(0));
    assert_eq!(align_up(33, 32), Some(64));
    assert_eq!(align_up(u64::MAX, 32), None);
    assert_eq!(align_up(5, 0), None);
}
