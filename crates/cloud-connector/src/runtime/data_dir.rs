//! The data folder. It contains the database file, the lock file, the API key of the caller `local`,
//! and the address of the running connector.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use uuid::Uuid;

use service::settings::SecretString;
use store_sqlite::OpenFile;

/// Name of the API caller that uses the API key in the data folder.
pub const LOCAL_CALLER: &str = "local";

const DATABASE_FILE_NAME: &str = "cloud-connector.db";
const KEY_FILE_NAME: &str = "local.key";
const LOCK_FILE_NAME: &str = "lock";
/// Minimum length of the API key in the key file. A shorter text is rejected as damaged.
const MIN_KEY_CHARS: usize = 16;

/// Returns the path of the database file in a data folder.
#[must_use]
pub fn database_path(dir: &Path) -> PathBuf {
    dir.join(DATABASE_FILE_NAME)
}

/// Returns the path of the file that contains the API key of the caller `local`.
#[must_use]
pub fn local_key_path(dir: &Path) -> PathBuf {
    dir.join(KEY_FILE_NAME)
}

/// Returns the path of the lock file in a data folder. The file contains the id of the process that
/// has locked the data folder last.
pub(super) fn lock_file_path(dir: &Path) -> PathBuf {
    dir.join(LOCK_FILE_NAME)
}

/// The data folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds the lock.
    #[error(
        "data.dir: {dir} is in use by another cloud-connector{}; stop that process, or choose \
         another folder with --data-dir",
        process_text(*.process_id)
    )]
    InUse {
        /// The data folder.
        dir: PathBuf,
        /// Id of the process that holds the lock. `None` if that process has not written its id
        /// yet.
        process_id: Option<u32>,
    },
    /// This process cannot create the folder or write to the folder.
    #[error(
        "data.dir: cannot {action} {dir}; choose a folder that this user can write to with \
         --data-dir"
    )]
    NotWritable {
        /// The failed action: create, use, write to, or lock.
        action: &'static str,
        /// The data folder.
        dir: PathBuf,
        /// Why the action failed.
        source: std::io::Error,
    },
}

/// A locked data folder. Dropping the value releases the lock.
pub struct DataDir {
    path: PathBuf,
    /// The lock file, on which this process holds a lock. The kernel releases the lock when the
    /// process exits, even after a crash.
    _lock_file: File,
    open_lock_file: OpenFile,
}

impl DataDir {
    /// Locks the data folder. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// When the folder is not writable, or another process holds the lock.
    pub fn open(dir: &Path) -> Result<Self, DataDirError> {
        let not_writable = |action| {
            move |source| DataDirError::NotWritable {
                action,
                dir: dir.to_owned(),
                source,
            }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(not_writable("create"))?;
        let path = dir.canonicalize().map_err(not_writable("use"))?;
        let mut lock_file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(lock_file_path(&path))
            .map_err(not_writable("write to"))?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DataDirError::InUse {
                    dir: dir.to_owned(),
                    process_id: lock_owner(&mut lock_file),
                });
            }
            Err(TryLockError::Error(error)) => return Err(not_writable("lock")(error)),
        }
        lock_file
            .set_len(0)
            .and_then(|()| writeln!(lock_file, "{}", std::process::id()))
            .map_err(not_writable("write to"))?;
        let open_lock_file =
            OpenFile::at_path(lock_file_path(&path)).map_err(not_writable("lock"))?;
        Ok(Self {
            path,
            _lock_file: lock_file,
            open_lock_file,
        })
    }

    /// Returns the open lock file. If the file at its path is deleted or replaced, another process
    /// can lock the data folder.
    #[must_use]
    pub fn lock_file(&self) -> &OpenFile {
        &self.open_lock_file
    }

    /// Returns the absolute path of the data folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the database file.
    #[must_use]
    pub fn database_path(&self) -> PathBuf {
        database_path(&self.path)
    }

    /// Returns the API key of the caller `local`. If the key file does not exist, creates a random
    /// key.
    ///
    /// # Errors
    /// When the key file cannot be read or written.
    pub fn local_key(&self) -> Result<SecretString> {
        let key_file = local_key_path(&self.path);
        match std::fs::read_to_string(&key_file) {
            Ok(text) if text.trim().len() >= MIN_KEY_CHARS => Ok(SecretString::from(text.trim())),
            Ok(_) => bail!(
                "{} does not contain a key; delete the file and restart, and a new key is created",
                key_file.display()
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => create_key(&key_file),
            Err(error) => Err(error).with_context(|| {
                format!("cannot read {}; check its permissions", key_file.display())
            }),
        }
    }
}

/// Creates a random key and stores it in `key_file`. Writes to a temporary file first and renames
/// the temporary file, so a crash does not leave a partial key.
fn create_key(key_file: &Path) -> Result<SecretString> {
    // The two UUIDs contain 244 random bits.
    let key = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let temporary_file = key_file.with_extension("new");
    let write_key = || -> std::io::Result<()> {
        let mut output = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary_file)?;
        writeln!(output, "{key}")?;
        output.sync_all()?;
        std::fs::rename(&temporary_file, key_file)
    };
    write_key().with_context(|| {
        format!(
            "cannot write the local key {}; check the permissions of the data folder",
            key_file.display()
        )
    })?;
    Ok(SecretString::from(key))
}

/// Returns the id of the process that holds the lock. Returns `None` if that process has not written
/// its id yet.
fn lock_owner(lock_file: &mut File) -> Option<u32> {
    let mut content = String::new();
    // A read error is ignored. The error message then does not contain the process id.
    let _ = lock_file.take(16).read_to_string(&mut content);
    content.trim().parse().ok()
}

/// Returns a text for the error message that contains the process id, or an empty text.
fn process_text(process_id: Option<u32>) -> String {
    process_id.map_or_else(String::new, |id| format!(" (process {id})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use service::settings::ExposeSecret as _;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_locked_data_folder_cannot_be_opened_again_until_the_lock_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let locked_dir = DataDir::open(&dir).unwrap();
        let error = DataDir::open(&dir).err().unwrap();
        let own_id = std::process::id();
        assert!(
            matches!(&error, DataDirError::InUse { process_id, .. } if *process_id == Some(own_id)),
            "{error}"
        );
        assert!(error.to_string().contains("in use"), "{error}");
        assert!(error.to_string().contains(&own_id.to_string()), "{error}");
        drop(locked_dir);
        assert!(DataDir::open(&dir).is_ok());
    }

    #[test]
    fn the_local_key_is_random_stored_and_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        let key = data.local_key().unwrap();
        assert_eq!(key.expose_secret().len(), 64);
        let stored_key = data.local_key().unwrap();
        assert_eq!(stored_key.expose_secret(), key.expose_secret());
        let key_file = std::fs::metadata(folder.path().join(KEY_FILE_NAME)).unwrap();
        assert_eq!(key_file.permissions().mode() & 0o777, 0o600);
        let other_folder = tempfile::tempdir().unwrap();
        let other_data = DataDir::open(other_folder.path()).unwrap();
        let other_key = other_data.local_key().unwrap();
        assert_ne!(other_key.expose_secret(), key.expose_secret());
    }
}
