//! Causes of presence changes.

/// Declares an enum whose variants have a name in the database and in the API.
macro_rules! named_causes {
    ($(#[$attribute:meta])* $enum:ident { $($(#[$variant_attribute:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $enum {
            $($(#[$variant_attribute])* $variant,)*
        }

        impl $enum {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name in the database and in the API.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the variant with this name. Returns `None` if the name is unknown.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|variant| variant.as_str() == name)
            }
        }
    };
}

pub(crate) use named_causes;

named_causes! {
    /// Why a connection became visible to an organization.
    OnlineCause {
        /// The client sent an online message.
        Connected = "connected",
        /// The tenant of a connected client was found.
        TenantFound = "tenant-found",
        /// A heartbeat proved that a client that was recorded as disconnected is connected.
        Heartbeat = "heartbeat",
    }
}

named_causes! {
    /// Why a connection is no longer visible to an organization.
    OfflineReason {
        /// The client sent an offline message, or closed its connection with a DISCONNECT packet.
        Client = "client",
        /// The connection was lost: the broker published the last will of the client.
        Will = "will",
        /// A caller of the API disconnected the client.
        Disconnected = "disconnected",
        /// The client did not respond to the pings of the liveness sweep.
        Expired = "expired",
        /// The client has not reconnected after a restart of the embedded broker.
        BrokerRestart = "broker-restart",
        /// The tenant lookup found that the client has no tenant.
        TenantLost = "tenant-lost",
        /// The client belongs to another organization now.
        Moved = "moved",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_belongs_to_one_variant() {
        for cause in OnlineCause::ALL {
            assert_eq!(OnlineCause::from_name(cause.as_str()), Some(*cause));
        }
        for reason in OfflineReason::ALL {
            assert_eq!(OfflineReason::from_name(reason.as_str()), Some(*reason));
        }
        assert_eq!(OfflineReason::from_name("unknown"), None);
    }
}
