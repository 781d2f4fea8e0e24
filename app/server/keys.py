"""Where the API key comes from that nobody should read among the processes."""

KEY_VARIABLE = "INFERDECK_API_KEY"
