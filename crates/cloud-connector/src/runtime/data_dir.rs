//! The data folder. It contains the database file, the lock file, and the API key of the caller
//! `local`.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use uuid::Uuid;

use service::settings::Secret;

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

/// A locked data folder. Dropping the value releases the lock.
pub struct DataDir {
    path: PathBuf,
    /// The lock file, on which this process holds a lock. The kernel releases the lock when the
    /// process exits, even after a crash.
    _lock_file: File,
}

impl DataDir {
    /// Locks the data folder. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// When the folder is not writable, or another process holds the lock.
    pub fn open(dir: &Path) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| not_writable_error("create", dir))?;
        let path = dir
            .canonicalize()
            .with_context(|| not_writable_error("use", dir))?;
        let mut lock_file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK_FILE_NAME))
            .with_context(|| not_writable_error("write to", dir))?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "data.dir: {} is in use by another cloud-connector{}; stop that process, or choose \
                 another folder with --data-dir",
                dir.display(),
                lock_owner_text(&mut lock_file)
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| not_writable_error("lock", dir));
            }
        }
        lock_file.set_len(0)?;
        writeln!(lock_file, "{}", std::process::id())
            .with_context(|| not_writable_error("write to", dir))?;
        Ok(Self {
            path,
            _lock_file: lock_file,
        })
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
    pub fn local_key(&self) -> Result<Secret> {
        let key_file = self.path.join(KEY_FILE_NAME);
        match std::fs::read_to_string(&key_file) {
            Ok(text) if text.trim().len() >= MIN_KEY_CHARS => Ok(Secret::new(text.trim())),
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
fn create_key(key_file: &Path) -> Result<Secret> {
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
    Ok(Secret::new(key))
}

fn not_writable_error(verb: &str, dir: &Path) -> String {
    format!(
        "data.dir: cannot {verb} {}; choose a folder that this user can write to with --data-dir",
        dir.display()
    )
}

/// Returns a text for an error message. The text contains the id of the process that holds the
/// lock. The text is empty if that process has not written its id yet.
fn lock_owner_text(lock_file: &mut File) -> String {
    let mut content = String::new();
    // A read error is ignored. The error message then does not contain the process id.
    let _ = lock_file.take(16).read_to_string(&mut content);
    match content.trim().parse::<u32>() {
        Ok(pid) => format!(" (process {pid})"),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_locked_data_folder_cannot_be_opened_again_until_the_lock_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let locked_dir = DataDir::open(&dir).unwrap();
        let error = format!("{:#}", DataDir::open(&dir).err().unwrap());
        assert!(error.contains("in use"), "{error}");
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(locked_dir);
        assert!(DataDir::open(&dir).is_ok());
    }

    #[test]
    fn the_local_key_is_random_stored_and_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        let key = data.local_key().unwrap();
        assert_eq!(key.expose().len(), 64);
        assert_eq!(data.local_key().unwrap().expose(), key.expose());
        let key_file = std::fs::metadata(folder.path().join(KEY_FILE_NAME)).unwrap();
        assert_eq!(key_file.permissions().mode() & 0o777, 0o600);
        let other_folder = tempfile::tempdir().unwrap();
        let other_data = DataDir::open(other_folder.path()).unwrap();
        assert_ne!(other_data.local_key().unwrap().expose(), key.expose());
    }
}
