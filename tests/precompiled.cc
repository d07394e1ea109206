// The target that this file belongs to exists for its precompiled header, which the tests share.
int main() { return 0; }
