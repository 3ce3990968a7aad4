//! Selection of a device.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// Selects a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// Driver index, from 0.
    Index(usize),
    /// UUID, independent of the order of devices.
    Uuid([u8; 16]),
}

impl Default for DeviceSelector {
    fn default() -> Self {
        DeviceSelector::Index(0)
    }
}

impl FromStr for DeviceSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceSelector, String> {
        if let Ok(index) = text.parse() {
            return Ok(DeviceSelector::Index(index));
        }
        let malformed =
            || format!("a device is an index or GPU- with its identifier, not {text:?}");
        let digits = text.strip_prefix("GPU-").ok_or_else(malformed)?;
        let digits: Vec<u32> = digits
            .chars()
            .filter(|&c| c != '-')
            .map(|c| c.to_digit(16))
            .collect::<Option<_>>()
            .ok_or_else(malformed)?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |n, &d| n << 4 | d as u8))
            .collect();
        let uuid = <[u8; 16]>::try_from(bytes).ok();
        let uuid = uuid.filter(|_| digits.len() == 32);
        uuid.map(DeviceSelector::Uuid).ok_or_else(malformed)
    }
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSelector::Index(index) => write!(f, "{index}"),
            DeviceSelector::Uuid(uuid) => f.write_str(&format_uuid(uuid)),
        }
    }
}

pub(super) fn format_uuid(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}
