//! Memory of the roles while clients send large messages.
