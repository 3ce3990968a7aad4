//! Which devices there are.

use std::ffi::c_int;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use super::api::{self, check};
use crate::cuda::code::Architecture;
use crate::cuda::device::{DeviceError, Unavailable};
use crate::cuda::which::{Which, identifier};

/// The least compute capability that kernels are compiled for. Products of four bytes (`__dp4a`) need 6.1 and lanes
/// that run apart 7.0, but tensor cores for bfloat16 and copies that bypass registers came with 8.0, and current
/// compilers make no code below 7.5.
pub const LEAST: Architecture = Architecture { major: 8, minor: 0 };

/// A device as the driver tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The driver's index.
    pub index: usize,
    /// As `NVIDIA H100 PCIe`.
    pub name: String,
    /// The same in every process and after every start.
    pub uuid: [u8; 16],
    /// What it executes.
    pub architecture: Architecture,
    /// Its multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of the cache that all of them share.
    pub l2_bytes: usize,
    /// Bytes of shared memory that a block may ask for.
    pub shared_bytes: usize,
    /// Whether memory is freed in the order of launches.
    pub pools: bool,
}

impl Found {
    /// The identifier as `nvidia-smi -L` prints it.
    pub fn identifier(&self) -> String {
        identifier(&self.uuid)
    }
}

/// All devices, those too old included.
///
/// # Errors
/// [`DeviceError::Unavailable`] without a library, a driver, or any device.
pub(super) fn all() -> Result<Vec<Found>, DeviceError> {
    api::start().map_err(DeviceError::Unavailable)?;
    let mut count: c_int = 0;
    // SAFETY: the driver was started.
    let code = unsafe { sys::cuDeviceGetCount(&mut count) };
    check(code, "counting devices")?;
    (0..count.max(0)).map(device).collect()
}

fn device(index: c_int) -> Result<Found, DeviceError> {
    let handle = handle(index)?;
    let mut name = [0_u8; 256];
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the driver was started and gave the handle; `name` has room for what is asked for, the last byte stays 0.
    unsafe {
        let room = name.len() as c_int - 1;
        check(
            sys::cuDeviceGetName(name.as_mut_ptr().cast(), room, handle),
            "asking a device's name",
        )?;
        check(
            sys::cuDeviceGetUuid_v2(&mut uuid, handle),
            "asking a device's identifier",
        )?;
    }
    let attribute = |which| {
        let mut value: c_int = 0;
        // SAFETY: as above.
        let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, handle) };
        check(code, "asking what a device is").map(|()| value.max(0) as usize)
    };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    let version = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    Ok(Found {
        index: index.max(0) as usize,
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        uuid: uuid.bytes.map(|byte| byte as u8),
        architecture: Architecture {
            major: version(attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            )?),
            minor: version(attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )?),
        },
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        pools: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
    })
}

/// The driver's handle of a device.
pub(super) fn handle(index: c_int) -> Result<sys::CUdevice, DeviceError> {
    let mut handle = 0;
    // SAFETY: the driver was started.
    match unsafe { sys::cuDeviceGet(&mut handle, index) } {
        CUresult::CUDA_SUCCESS => Ok(handle),
        code => Err(DeviceError::Driver {
            doing: "asking for a device",
            message: api::meaning(code),
        }),
    }
}

/// The device that is meant, if kernels run on it.
///
/// # Errors
/// [`DeviceError::Unavailable`], and of the driver.
pub(super) fn one(which: Which) -> Result<Found, DeviceError> {
    let all = all().map_err(|error| match (error, which) {
        // A driver that knows no device does not say which was asked for.
        (DeviceError::Unavailable(Unavailable::NoDevice { .. }), Which::Index(asked)) => {
            DeviceError::Unavailable(Unavailable::NoDevice { asked, found: 0 })
        }
        (DeviceError::Unavailable(Unavailable::NoDevice { .. }), Which::Uuid(uuid)) => {
            DeviceError::Unavailable(Unavailable::NoSuch {
                asked: identifier(&uuid),
                found: "none".to_owned(),
            })
        }
        (error, _) => error,
    })?;
    let count = all.len();
    let identifiers = || {
        let all = all.iter().map(Found::identifier);
        all.collect::<Vec<_>>().join(", ")
    };
    let found = match which {
        Which::Index(index) => all.get(index).ok_or(Unavailable::NoDevice {
            asked: index,
            found: count,
        }),
        Which::Uuid(uuid) => {
            all.iter()
                .find(|found| found.uuid == uuid)
                .ok_or_else(|| Unavailable::NoSuch {
                    asked: identifier(&uuid),
                    found: identifiers(),
                })
        }
    };
    let found = found.map_err(DeviceError::Unavailable)?;
    if found.architecture < LEAST {
        return Err(DeviceError::Unavailable(Unavailable::TooOld {
            name: found.name.clone(),
            found: found.architecture.capability(),
            least: "8.0",
        }));
    }
    Ok(found.clone())
}
