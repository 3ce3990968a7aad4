//! Enumeration of devices.

use std::ffi::c_int;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::api::{self, check_driver};
use crate::cuda::code::GpuArchitecture;
use crate::cuda::device::DeviceError;
use crate::cuda::which::{DeviceSelector, format_uuid};

/// Minimum compute capability: bfloat16 tensor cores and asynchronous copies came with 8.0.
pub const MIN_ARCHITECTURE: GpuArchitecture = GpuArchitecture { major: 8, minor: 0 };

/// Properties of a device reported by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// Driver index.
    pub index: usize,
    /// Name, e.g. `NVIDIA H100 PCIe`.
    pub name: String,
    /// UUID, stable across processes and reboots.
    pub uuid: [u8; 16],
    /// Architecture.
    pub architecture: GpuArchitecture,
    /// Number of multiprocessors.
    pub multiprocessors: usize,
    /// L2 cache size in bytes.
    pub l2_bytes: usize,
    /// Maximum shared memory per block in bytes.
    pub max_shared_bytes: usize,
    /// Supports stream-ordered memory pools.
    pub has_memory_pools: bool,
}

impl DeviceProperties {
    /// Returns the identifier in the format of `nvidia-smi -L`.
    pub fn uuid_string(&self) -> String {
        format_uuid(&self.uuid)
    }
}

pub(super) fn list_devices() -> Result<Vec<DeviceProperties>, DeviceError> {
    api::load_driver()?;
    let mut count: c_int = 0;
    // SAFETY: the driver is initialised.
    let code = unsafe { sys::cuDeviceGetCount(&mut count) };
    check_driver(code, "counting devices")?;
    (0..count.max(0)).map(device_properties).collect()
}

fn device_properties(index: c_int) -> Result<DeviceProperties, DeviceError> {
    let handle = device_handle(index)?;
    let mut name = [0_u8; 256];
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the driver is initialised and returned the handle; the length passed leaves the last
    // byte of `name` zero.
    unsafe {
        let length = name.len() as c_int - 1;
        check_driver(
            sys::cuDeviceGetName(name.as_mut_ptr().cast(), length, handle),
            "asking a device's name",
        )?;
        check_driver(
            sys::cuDeviceGetUuid_v2(&mut uuid, handle),
            "asking a device's identifier",
        )?;
    }
    let attribute = |which| {
        let mut value: c_int = 0;
        // SAFETY: as above.
        let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, handle) };
        check_driver(code, "asking what a device is").map(|()| value.max(0) as usize)
    };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    let version = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    Ok(DeviceProperties {
        index: index.max(0) as usize,
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        uuid: uuid.bytes.map(|byte| byte as u8),
        architecture: GpuArchitecture {
            major: version(attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            )?),
            minor: version(attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )?),
        },
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        max_shared_bytes: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        has_memory_pools: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
    })
}

pub(super) fn device_handle(index: c_int) -> Result<sys::CUdevice, DeviceError> {
    let mut handle = 0;
    // SAFETY: the driver is initialised.
    let code = unsafe { sys::cuDeviceGet(&mut handle, index) };
    check_driver(code, "asking for a device").map(|()| handle)
}

pub(super) fn select_device(which: DeviceSelector) -> Result<DeviceProperties, DeviceError> {
    let all = match list_devices() {
        // `list_devices` fails with `NoDevice` if there are none; the error below names the
        // requested one.
        Err(DeviceError::NoDevice { .. }) => Vec::new(),
        all => all?,
    };
    let found = match which {
        DeviceSelector::Index(requested) => {
            let available = all.len();
            all.get(requested).ok_or(DeviceError::NoDevice {
                requested,
                available,
            })
        }
        DeviceSelector::Uuid(uuid) => {
            let found = all.iter().find(|found| found.uuid == uuid);
            found.ok_or_else(|| DeviceError::UnknownUuid {
                requested: format_uuid(&uuid),
                available: match &all[..] {
                    [] => "none".to_owned(),
                    all => {
                        let all: Vec<_> = all.iter().map(DeviceProperties::uuid_string).collect();
                        all.join(", ")
                    }
                },
            })
        }
    }?;
    if found.architecture < MIN_ARCHITECTURE {
        return Err(DeviceError::TooOld {
            name: found.name.clone(),
            capability: found.architecture.capability(),
            minimum: "8.0",
        });
    }
    Ok(found.clone())
}
