"""tests.engine.telemetry"""
